/* Products of rows of x in bf16 with a matrix in INT8, where the processor multiplies bytes: as fast as weights can be read,
   or bytes multiplied.

   x is rounded to bytes with a scale for each SPAN numbers of a row. With one or two rows of x each row of weights is added
   up by itself. With more a span of 16 rows of weights is transposed, so that each four numbers of all of them lie in one
   vector, and is multiplied with each row of x. With many PANEL rows of weights are packed so, and a tile of them and of
   WIDE rows of x is added up in registers. A row has the same result in any company, by each of these ways: sums of whole
   numbers are exact, and those of spans are added in one order. */

#define SPAN 64  /* numbers of a row of x with one scale; with 128, a language model loses a hundredth */
#define TOGETHER 64 /* rows of x that are multiplied with a transposed span */
#define FEW 128  /* rows of x for which no panel is packed */
#define PANEL 64 /* rows of weights that are packed together: DEEP vectors */
#define DEEP 4
#define WIDE 6

/* Bytes rounded up to an odd number of cache lines, so that neighbouring rows fall into different sets of the cache. */
static int64_t odd_lines(int64_t bytes) { return ((bytes + 63) / 64 | 1) * 64; }

static int64_t spans(int64_t k) { return (k + SPAN - 1) / SPAN; }

/* Bytes of a row of x as it is laid out: its numbers, then for each span the scale, then what its sums begin with, as
   weights are taken as bytes that stand 128 too high. */
static int64_t laid_row(int64_t k) { return odd_lines(spans(k) * (SPAN + 8)); }

static void lay_out_row(const Job *job, int64_t r) {
  const uint16_t *low = (const uint16_t *)job->x + r * job->k;
  uint8_t *to = (uint8_t *)job->laid + r * laid_row(job->k);
  float *scale = (float *)(to + spans(job->k) * SPAN);
  int32_t *start = (int32_t *)scale + spans(job->k);
  for (int64_t at = 0; at < job->k; at += SPAN, scale++, start++) {
    vec x[SPAN / 16];
    __m512i most = _mm512_setzero_si512(), sum = most; /* most: as bits, among which what is not finite is greatest */
    int64_t count = job->k - at < SPAN ? (job->k - at) / 16 : SPAN / 16;
    for (int64_t p = 0; p < count; p++) {
      x[p] = read(low, at + 16 * p, 1);
      most = _mm512_max_epu32(most, _mm512_and_si512((__m512i)x[p], _mm512_set1_epi32(0x7fffffff)));
    }
    union { uint32_t u; float f; } top = {_mm512_reduce_max_epu32(most)};
    float by = top.f > 1e-30f ? 127.0f / top.f : 0.0f;
    *scale = top.f / 127.0f;
    for (int64_t p = 0; p < SPAN / 16; p++) {
      __m512i whole = p < count ? _mm512_cvtps_epi32((__m512)(x[p] * by)) : _mm512_setzero_si512();
      sum = _mm512_add_epi32(sum, whole);
      _mm_storeu_si128((__m128i *)(to + at + 16 * p), _mm512_cvtepi32_epi8(whole));
    }
    *start = -128 * _mm512_reduce_add_epi32(sum);
  }
}

/* 16 rows of 16 numbers of 32 bits, transposed. */
INLINE void transpose_square(__m512i r[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) {
    int from = i / 2 * 4 + i % 2;
    r[2 * i] = _mm512_unpacklo_epi64(t[from], t[from + 2]);
    r[2 * i + 1] = _mm512_unpackhi_epi64(t[from], t[from + 2]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) {
    int from = i / 4 * 8 + i % 4;
    t[from] = _mm512_shuffle_i32x4(r[from], r[from + 4], 0x88);
    t[from + 4] = _mm512_shuffle_i32x4(r[from], r[from + 4], 0xdd);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
  }
}

/* As many bytes of weights as are left, up to SPAN, each 128 too high; x is 0 beyond its end. */
INLINE __m512i read_raised(const uint8_t *from, int64_t left) {
  const __mmask64 real = left >= SPAN ? ~(__mmask64)0 : left > 0 ? 0xffffffff : 0;
  return _mm512_xor_si512(_mm512_maskz_loadu_epi8(real, from), _mm512_set1_epi8((char)128));
}

/* A span of 16 rows of weights of which `rows` are left, as far as numbers are left. */
INLINE void read_span(const uint8_t *from, int64_t k, int64_t rows, int64_t left, __m512i r[16]) {
#pragma GCC unroll 16
  for (int n = 0; n < 16; n++) r[n] = n < rows ? read_raised(from + n * k, left) : _mm512_setzero_si512();
}

/* A vector of the sums of the lanes of each of 16. */
INLINE __m512i add_up_lanes(const __m512i r[16]) {
  __m512i t[8];
#pragma GCC unroll 8
  for (int n = 0; n < 8; n++)
    t[n] = _mm512_add_epi32(_mm512_unpacklo_epi32(r[2 * n], r[2 * n + 1]), _mm512_unpackhi_epi32(r[2 * n], r[2 * n + 1]));
#pragma GCC unroll 4
  for (int n = 0; n < 4; n++)
    t[n] = _mm512_add_epi32(_mm512_unpacklo_epi64(t[2 * n], t[2 * n + 1]), _mm512_unpackhi_epi64(t[2 * n], t[2 * n + 1]));
#pragma GCC unroll 2
  for (int count = 2; count; count /= 2)
    for (int n = 0; n < count; n++)
      t[n] = _mm512_add_epi32(_mm512_shuffle_i32x4(t[2 * n], t[2 * n + 1], 0x88),
                              _mm512_shuffle_i32x4(t[2 * n], t[2 * n + 1], 0xdd));
  return t[0];
}

INLINE __m512 add_scaled(__m512 sum, __m512i whole, const uint8_t *scale) { /* `scale` of the span of a row of x */
  float by;
  memcpy(&by, scale, 4);
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), _mm512_set1_ps(by), sum);
}

INLINE __m512i read_start(const uint8_t *scale, int64_t k) { /* of the span of a row of x that has this scale */
  int32_t start;
  memcpy(&start, scale + 4 * spans(k), 4);
  return _mm512_set1_epi32(start);
}

/* The outputs of 16 rows of weights, from i on, and of a row of x, of those before `to`. */
INLINE void write_outputs(const Job *job, int64_t i, int64_t to, int64_t row, __m512 sum) {
  const __mmask16 real = to - i >= 16 ? 0xffff : to > i ? (__mmask16)((1 << (to - i)) - 1) : 0;
  __m256i low = job->bias ? _mm256_maskz_loadu_epi16(real, (const uint16_t *)job->bias + i) : _mm256_setzero_si256();
  __m512 bias = (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(low), 16);
  __m512 scale = job->scale ? _mm512_maskz_loadu_ps(real, job->scale + i) : _mm512_set1_ps(1.0f);
  __m256bh out = _mm512_cvtneps_pbh(_mm512_fmadd_ps(sum, scale, bias));
  _mm256_mask_storeu_epi16((uint16_t *)job->out + row * job->step + i, real, (__m256i)out);
}

/* The sums of up to 16 spans of a row of weights, of which `left` numbers are left, and of each of `wide` rows of x. */
INLINE void sum_spans(const uint8_t *w, int64_t left, const uint8_t *x, int64_t row, int wide, __m512i *sums, int64_t step) {
  __m512i r[16], each[16];
#pragma GCC unroll 16
  for (int s = 0; s < 16; s++) r[s] = read_raised(w + s * SPAN, left - s * SPAN);
#pragma GCC unroll 2
  for (int c = 0; c < wide; c++) {
#pragma GCC unroll 16
    for (int s = 0; s < 16; s++) {
      if (c == 0) __builtin_prefetch(w + s * SPAN + 8192); /* not beside the loads: those of a burst wait for one another */
      each[s] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), r[s], _mm512_loadu_si512(x + c * row + s * SPAN));
    }
    sums[c * step] = add_up_lanes(each);
  }
}

/* 16 rows of weights from i on with `wide` rows of x from m on. Rows of weights are read one after another, as memory is
   fastest so: the sums of 16 spans of one of them become a vector, and those of 16 of them are transposed at the end. */
INLINE void multiply_few(const Job *job, int wide, int64_t i, int64_t to, int64_t m) {
  const int64_t k = job->k, row = laid_row(k), blocks = (spans(k) + 15) / 16, block = 16 * SPAN;
  const uint8_t *x = (const uint8_t *)job->laid + m * row, *scale = x + spans(k) * SPAN;
  __m512i kept[wide * blocks][16];
  for (int n = 0; n < 16; n++) {
    const uint8_t *w = job->weight + (i + n < to ? i + n : to - 1) * k;
    int64_t b = 0;
    for (; (b + 1) * block <= k; b++) sum_spans(w + b * block, block, x + b * block, row, wide, kept[b] + n, 16 * blocks);
    if (b < blocks) sum_spans(w + b * block, k - b * block, x + b * block, row, wide, kept[b] + n, 16 * blocks);
  }
  for (int c = 0; c < wide; c++, x += row, scale += row) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; b++) {
      __m512i *of_span = kept[c * blocks + b];
      transpose_square(of_span);
      for (int64_t s = 0; s < 16 && 16 * b + s < spans(k); s++) {
        const uint8_t *by = scale + 4 * (16 * b + s);
        sum = add_scaled(sum, _mm512_add_epi32(read_start(by, k), of_span[s]), by);
      }
    }
    write_outputs(job, i, to, m + c, sum);
  }
}

/* What a span of 16 rows of weights, transposed, and of one row of x gives. */
INLINE __m512i multiply_span(const __m512i r[16], const uint8_t *x) {
  __m512i all[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()}; /* a single sum would wait for itself */
#pragma GCC unroll 16
  for (int n = 0; n < 16; n++) {
    int32_t four;
    memcpy(&four, x + 4 * n, 4);
    all[n % 2] = _mm512_dpbusd_epi32(all[n % 2], r[n], _mm512_set1_epi32(four));
  }
  return _mm512_add_epi32(all[0], all[1]);
}

/* 16 rows of weights from i on with `count` rows of x from m on, a span of all of them after another. */
INLINE void multiply_some(const Job *job, int64_t i, int64_t to, int64_t m, int64_t count) {
  const int64_t k = job->k, row = laid_row(k);
  const uint8_t *w = job->weight + i * k, *x = (const uint8_t *)job->laid + m * row, *scale = x + spans(k) * SPAN;
  __m512 sum[TOGETHER];
  for (int64_t c = 0; c < count; c++) sum[c] = _mm512_setzero_ps();
  for (int64_t at = 0; at < k; at += SPAN, scale += 4) {
    __m512i r[16];
#pragma GCC unroll 16
    for (int n = 0; n < 16; n++) __builtin_prefetch(w + 16 * (k + at) + 64 * n); /* what comes next, as it lies there */
    read_span(w + at, k, to - i, k - at, r);
    transpose_square(r);
    for (int64_t c = 0; c < count; c++) {
      __m512i whole = _mm512_add_epi32(read_start(scale + c * row, k), multiply_span(r, x + c * row + at));
      sum[c] = add_scaled(sum[c], whole, scale + c * row);
    }
  }
  for (int64_t c = 0; c < count; c++) write_outputs(job, i, to, m + c, sum[c]);
}

static void multiply_sixteens(const Job *job, int64_t from, int64_t to) {
  for (int64_t i = from; i < to; i += 16)
    for (int64_t m = 0, left = job->rows; left > 0; m += TOGETHER, left -= TOGETHER)
      switch (left) {
        case 1: multiply_few(job, 1, i, to, m); break;
        case 2: multiply_few(job, 2, i, to, m); break;
        default: multiply_some(job, i, to, m, left < TOGETHER ? left : TOGETHER);
      }
}

/* Rows of weights from i on, as many as a panel has or are left, packed: four numbers of each of PANEL rows, then the next
   four. */
static void pack_panel(const Job *job, int64_t i, uint8_t *to) {
  const int64_t k = job->k;
  for (int64_t v = 0; v < DEEP; v++)
    for (int64_t at = 0; at < k; at += SPAN) {
      __m512i r[16];
      read_span(job->weight + (i + 16 * v) * k + at, k, job->n - i - 16 * v, k - at, r);
      transpose_square(r);
#pragma GCC unroll 16
      for (int n = 0; n < 16; n++) _mm512_storeu_si512(to + (at / 4 + n) * PANEL * 4 + 64 * v, r[n]);
    }
}

/* Adds what four bytes of each of WIDE rows of x, or two numbers of bf16, give with those of a panel: whole numbers, or
   numbers of fp32 as bits. Instructions stand by their names, as GCC would copy sums to and fro. */
INLINE void add_four_bytes(__m512i all[WIDE][DEEP], int low, const uint8_t *x, int64_t row, const uint8_t *w) {
  __m512i q[DEEP];
#pragma GCC unroll 4
  for (int v = 0; v < DEEP; v++) q[v] = _mm512_loadu_si512(w + 64 * v);
#pragma GCC unroll 6
  for (int c = 0; c < WIDE; c++) {
    int32_t four;
    memcpy(&four, x + c * row, 4);
    const __m512i y = _mm512_set1_epi32(four);
#pragma GCC unroll 4
    for (int v = 0; v < DEEP; v++)
      if (low) __asm__("vdpbf16ps %2, %1, %0" : "+v"(all[c][v]) : "v"(q[v]), "v"(y));
      else __asm__("vpdpbusd %2, %1, %0" : "+v"(all[c][v]) : "v"(q[v]), "v"(y));
  }
}

/* Adds what a span of `count` numbers of a panel and of WIDE rows of x gives, whose scales stand at `scale`. It is not
   inlined, so that all registers are for the whole numbers that are added up. */
static __attribute__((noinline)) void add_span(const uint8_t *x, const uint8_t *scale, int64_t k, const uint8_t *w,
                                               int64_t count, __m512 sum[WIDE][DEEP]) {
  const int64_t row = laid_row(k);
  __m512i all[WIDE][DEEP];
#pragma GCC unroll 6
  for (int c = 0; c < WIDE; c++)
#pragma GCC unroll 4
    for (int v = 0; v < DEEP; v++) all[c][v] = read_start(scale + c * row, k);
  for (const uint8_t *end = x + count; x < end; x += 4, w += PANEL * 4) add_four_bytes(all, 0, x, row, w);
#pragma GCC unroll 6
  for (int c = 0; c < WIDE; c++)
#pragma GCC unroll 4
    for (int v = 0; v < DEEP; v++) sum[c][v] = add_scaled(sum[c][v], all[c][v], scale + c * row);
}

static int multiply_panels(const Job *job, int64_t from, int64_t to) {
  const int64_t k = job->k, row = laid_row(k), rows = job->rows;
  void *made = malloc((size_t)(PANEL * spans(k) * SPAN + 64));
  if (!made) return 1;
  uint8_t *panel = (uint8_t *)(((uintptr_t)made + 63) & ~(uintptr_t)63);
  const int64_t fetched = PANEL * k / ((rows + WIDE - 1) / WIDE); /* bytes of the next panel, beside each tile */
  for (int64_t i = from; i < to; i += PANEL) {
    pack_panel(job, i, panel);
    const uint8_t *later = job->weight + (i + PANEL) * k, *end = job->weight + to * k;
    for (int64_t m = 0; m < rows; m += WIDE) {
      for (int64_t n = 0; n < fetched && later < end; n += 64, later += 64) __builtin_prefetch(later);
      const int64_t first = m < rows - WIDE ? m : rows - WIDE; /* some of the last ones are computed twice */
      __m512 sum[WIDE][DEEP] = {{{0}}};
      for (int64_t c = 0; c < WIDE; c++)
        for (int64_t n = 0; n < PANEL; n += 32) __builtin_prefetch((uint16_t *)job->out + (first + c) * job->step + i + n, 1);
      const uint8_t *x = (const uint8_t *)job->laid + first * row, *scale = x + spans(k) * SPAN;
      for (int64_t at = 0; at < k; at += SPAN)
        add_span(x + at, scale + at / SPAN * 4, k, panel + at * PANEL, k - at < SPAN ? k - at : SPAN, sum);
      for (int c = 0; c < WIDE; c++)
        for (int v = 0; v < DEEP; v++) write_outputs(job, i + 16 * v, to, first + c, sum[c][v]);
    }
  }
  free(made);
  return 0;
}

/* The outputs from `from` on, before `to`, of all rows; 0 where it was done. */
static int multiply_tiles(const Job *job, int64_t from, int64_t to) {
  if (job->rows > FEW) return multiply_panels(job, from, to);
  multiply_sixteens(job, from, to);
  return 0;
}
