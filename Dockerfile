# A server on a CPU: docker build -t qkv . && docker run -p 8000:8000 -e QKV_API_KEY=… qkv
FROM python:3.12-slim
RUN useradd --create-home --uid 1000 qkv
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --index-url "$TORCH_INDEX" "$(grep '^torch==' constraints.txt)" \
    && pip install --no-cache-dir -c constraints.txt .
USER qkv
ENV HF_HOME=/home/qkv/models
VOLUME /home/qkv/models
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["qkv", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["demo", "demo-lm", "demo-bert"]
