/* Attention of many queries of a text in bf16, where the processor multiplies pairs of bf16: softmax(cap(q k * scale) +
   bias) v, to the keys that are not later where `causal`.

   The keys of a group are packed once, so that pairs of numbers of 16 of them lie side by side, and pairs of values of two
   keys likewise; tiles of WIDE queries and PANEL keys, or numbers of a value, are added up in registers (row_tiles.c). A
   query has all its scores at once. Weights are rounded to bf16, and divided by their sum at last. */

typedef struct {
  const uint16_t *q, *k, *v; /* their last dimension in one piece */
  uint16_t *out;             /* [rows, tokens, heads, value_size] */
  const float *bias;         /* its last dimension in one piece, or none */
  int64_t rows, heads, groups, tokens, keys, size, value_size;
  int64_t q_row, q_head, q_token, k_row, k_group, k_step, v_row, v_group, v_step, bias_row, bias_head, bias_token;
  float scale, cap;
  int32_t causal;
} Prompt;

#if defined(__AVX512BF16__)
typedef struct {
  const Prompt *job;
  Ask number;
  int32_t failed;
} PromptTeam;

typedef struct {
  uint8_t *keys, *values; /* packed */
  float *scores;          /* of WIDE queries */
  uint16_t *weights;
} Scratch;

static int64_t whole_panels(int64_t n) { return (n + PANEL - 1) / PANEL; }

static void pack_keys(const Prompt *job, const uint16_t *k, uint8_t *to) {
  for (int64_t s = 0; s < whole_panels(job->keys) * PANEL; s += 16)
    for (int64_t i = 0; i < job->size; i += 32) {
      __m512i r[16];
      for (int n = 0; n < 16; n++)
        r[n] = s + n < job->keys ? _mm512_loadu_si512(k + (s + n) * job->k_step + i) : _mm512_setzero_si512();
      transpose_square(r);
      for (int n = 0; n < 16; n++)
        _mm512_storeu_si512(to + (s / PANEL * job->size / 2 + i / 2 + n) * PANEL * 4 + s % PANEL * 4, r[n]);
    }
}

static void pack_values(const Prompt *job, const uint16_t *v, uint8_t *to) {
  const int64_t pairs = whole_panels(job->keys) * PANEL / 2;
  for (int64_t i = 0; i < whole_panels(job->value_size) * PANEL; i += 16)
    for (int64_t p = 0; p < pairs; p++) {
      __m512i both = _mm512_setzero_si512();
      for (int n = 0; n < 2; n++)
        if (2 * p + n < job->keys && i < job->value_size) {
          const __m256i *from = (const __m256i *)(v + (2 * p + n) * job->v_step + i);
          __m512i one = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from));
          both = _mm512_or_si512(both, n ? _mm512_slli_epi32(one, 16) : one);
        }
      _mm512_storeu_si512(to + (i / PANEL * pairs + p) * PANEL * 4 + i % PANEL * 4, both);
    }
}

/* The products of WIDE rows of x, each `row` numbers behind the last, with a panel: `pairs` of them. */
static __attribute__((noinline)) void multiply_panel(const uint16_t *x, int64_t row, const uint8_t *w, int64_t pairs,
                                                     __m512 sum[WIDE][DEEP]) {
  __m512i all[WIDE][DEEP];
#pragma GCC unroll 6
  for (int c = 0; c < WIDE; c++)
#pragma GCC unroll 4
    for (int v = 0; v < DEEP; v++) all[c][v] = _mm512_setzero_si512();
  for (const uint16_t *end = x + 2 * pairs; x < end; x += 2, w += PANEL * 4)
    add_four_bytes(all, 1, (const uint8_t *)x, 2 * row, w);
#pragma GCC unroll 6
  for (int c = 0; c < WIDE; c++)
#pragma GCC unroll 4
    for (int v = 0; v < DEEP; v++) sum[c][v] = (__m512)all[c][v];
}

/* Scores to weights in bf16, 0 from `length` to `all`; gives their sum. */
static float weigh_keys(const Prompt *job, float *score, const float *bias, int64_t length, int64_t all, uint16_t *to) {
  vec most = (vec){0} - __builtin_inff(), sum = {0};
  for (int64_t s = 0; s < length; s += LANES) {
    vec y = *(loose *)(score + s) * job->scale;
    if (job->cap != 0.0f) y = job->cap * (1.0f - 2.0f / (exponential(y * (2.0f / job->cap)) + 1.0f));
    *(loose *)(score + s) = y = add_first(y, bias ? bias + s : 0, length - s);
    most = greater_of(y, most);
  }
  float top = most_of(most);
  for (int64_t s = 0; s < all; s += LANES) {
    __mmask16 some = length - s >= 16 ? 0xffff : length > s ? (__mmask16)((1 << (length - s)) - 1) : 0;
    vec y = (vec)_mm512_maskz_mov_ps(some, (__m512)exponential(*(loose *)(score + s) - top));
    write_bf16(to + s, y);
    sum += y;
  }
  return add_up(sum);
}

static void attend_queries(const Prompt *job, const Scratch *scratch, int64_t row, int64_t head, int64_t first) {
  const uint16_t *q = job->q + row * job->q_row + head * job->q_head + first * job->q_token;
  const int64_t last = job->causal ? first + WIDE : job->keys, room = whole_panels(job->keys) * PANEL;
  const int64_t panels = whole_panels(last);
  __m512 sum[WIDE][DEEP];
  float by[WIDE];
  for (int64_t n = 0; n < panels; n++) {
    multiply_panel(q, job->q_token, scratch->keys + n * job->size / 2 * PANEL * 4, job->size / 2, sum);
    for (int c = 0; c < WIDE; c++)
      for (int v = 0; v < DEEP; v++) _mm512_storeu_ps(scratch->scores + c * room + n * PANEL + 16 * v, sum[c][v]);
  }
  for (int64_t c = 0; c < WIDE; c++) {
    const float *bias = job->bias ? job->bias + row * job->bias_row + head * job->bias_head : 0;
    if (bias) bias += (first + c) * job->bias_token;
    by[c] = 1.0f / weigh_keys(job, scratch->scores + c * room, bias, job->causal ? first + c + 1 : job->keys, panels * PANEL,
                              scratch->weights + c * room);
  }
  for (int64_t i = 0; i < job->value_size; i += PANEL) {
    multiply_panel(scratch->weights, room, scratch->values + i / PANEL * room / 2 * PANEL * 4, panels * PANEL / 2, sum);
    for (int64_t c = 0; c < WIDE; c++)
      for (int64_t v = 0; v < DEEP && i + 16 * v < job->value_size; v++)
        write_bf16(job->out + (((row * job->tokens + first + c) * job->heads + head) * job->value_size) + i + 16 * v,
                   (vec)sum[c][v] * by[c]);
  }
}

static int attend_prompt_share(const Prompt *job, int64_t number, int64_t threads) {
  const int64_t room = whole_panels(job->keys) * PANEL, wide = whole_panels(job->value_size) * PANEL;
  const int64_t each = job->heads / job->groups, parts = job->rows * job->groups < 2 * threads ? 2 * threads : 1;
  void *made = malloc((size_t)(2 * room * (job->size + wide) + room * WIDE * 6 + 64));
  if (!made) return 1;
  Scratch scratch = {(uint8_t *)(((uintptr_t)made + 63) & ~(uintptr_t)63), 0, 0, 0};
  scratch.values = scratch.keys + 2 * room * job->size;
  scratch.scores = (float *)(scratch.values + 2 * room * wide);
  scratch.weights = (uint16_t *)(scratch.scores + room * WIDE);
  const int64_t all = job->rows * job->groups * parts;
  int64_t packed = -1;
  for (int64_t t = all * number / threads; t < all * (number + 1) / threads; t++) {
    const int64_t r = t / parts / job->groups, g = t / parts % job->groups, part = t % parts;
    if (packed != t / parts) {
      pack_keys(job, job->k + r * job->k_row + g * job->k_group, scratch.keys);
      pack_values(job, job->v + r * job->v_row + g * job->v_group, scratch.values);
      packed = t / parts;
    }
    for (int64_t h = g * each; h < (g + 1) * each; h++)
      for (int64_t m = part * WIDE; m < job->tokens; m += parts * WIDE) /* some of the last ones are computed twice */
        attend_queries(job, &scratch, r, h, m < job->tokens - WIDE ? m : job->tokens - WIDE);
  }
  free(made);
  return 0;
}

static void attend_prompt_part(void *given) {
  PromptTeam *team = given;
  if (attend_prompt_share(team->job, team->number ? team->number() : 0, count_threads(team->number))) team->failed = 1;
}

int qkv_attends_prompts(void) { return 1; }

/* 0 where it was done; at least WIDE queries, as many keys where `causal`. */
int qkv_attend_prompt(const Prompt *job, Fork fork, Ask number, int64_t threads) {
  PromptTeam team = {job, threads > 1 ? number : 0, 0};
  if (threads > 1) fork(attend_prompt_part, &team, (unsigned)threads, 0);
  else attend_prompt_part(&team);
  return team.failed;
}
#else
int qkv_attends_prompts(void) { return 0; }

int qkv_attend_prompt(const Prompt *job, Fork fork, Ask number, int64_t threads) {
  return (void)job, (void)fork, (void)number, threads != 0; /* there is none */
}
#endif
