/* Products of many rows of x in bf16 with a matrix in INT8, where the processor multiplies bytes: bound by arithmetic.

   x is rounded to bytes with a scale for each SPAN numbers of a row. PANEL rows of weights at a time are packed so that
   each four numbers of 16 of them lie side by side; a tile of them and of WIDE rows of x is added up in registers. A row
   has the same result in any company: sums of whole numbers are exact, and those of spans are added in one order. */

#define SPAN 64  /* numbers of a row of x with one scale; with 128, a language model loses a hundredth */
#define PANEL 64 /* rows of weights that are packed together: DEEP vectors */
#define DEEP 4
#define WIDE 6

static int64_t spans(int64_t k) { return (k + SPAN - 1) / SPAN; }

/* Bytes of a row of x as it is laid out: its numbers, each 128 too high, then the scales. */
static int64_t laid_row(int64_t k) { return (spans(k) * (SPAN + 4) + 63) / 64 * 64; }

static void lay_out_row(const Job *job, int64_t r) {
  const uint16_t *low = (const uint16_t *)job->x + r * job->k;
  uint8_t *to = (uint8_t *)job->laid + r * laid_row(job->k);
  float *scale = (float *)(to + spans(job->k) * SPAN);
  for (int64_t at = 0; at < job->k; at += SPAN, scale++) {
    vec x[SPAN / 16];
    __m512i most = _mm512_setzero_si512(); /* as bits, among which what is not finite is greatest */
    int64_t count = job->k - at < SPAN ? (job->k - at) / 16 : SPAN / 16;
    for (int64_t p = 0; p < count; p++) {
      x[p] = read(low, at + 16 * p, 1);
      most = _mm512_max_epu32(most, _mm512_and_si512((__m512i)x[p], _mm512_set1_epi32(0x7fffffff)));
    }
    union { uint32_t u; float f; } top = {_mm512_reduce_max_epu32(most)};
    float by = top.f > 1e-30f ? 127.0f / top.f : 0.0f;
    *scale = top.f / 127.0f;
    for (int64_t p = 0; p < SPAN / 16; p++) { /* beyond the end weights are 0 */
      __m128i bytes = p < count ? _mm512_cvtepi32_epi8(_mm512_cvtps_epi32((__m512)(x[p] * by))) : _mm_setzero_si128();
      _mm_storeu_si128((__m128i *)(to + at + 16 * p), _mm_xor_si128(bytes, _mm_set1_epi8((char)128)));
    }
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

/* Rows of weights from i on, as many as a panel has or are left, packed: four numbers of each of PANEL rows, then the next
   four. `start` has, for each span, what the sums of each row begin with, as x stands 128 too high. */
static void pack_panel(const Job *job, int64_t i, uint8_t *to, int32_t *start) {
  const int64_t k = job->k;
  const __m512i one = _mm512_set1_epi8((char)128);
  for (int64_t v = 0; v < DEEP; v++) {
    for (int64_t at = 0; at < k; at += SPAN) {
      const uint8_t *from = job->weight + (i + 16 * v) * k + at;
      const __mmask64 some = k - at < SPAN ? 0xffffffff : ~(__mmask64)0;
      __m512i r[16], sum = _mm512_setzero_si512();
#pragma GCC unroll 16
      for (int n = 0; n < 16; n++)
        r[n] = i + 16 * v + n < job->n ? _mm512_maskz_loadu_epi8(some, from + n * k) : _mm512_setzero_si512();
      transpose_square(r);
#pragma GCC unroll 16
      for (int n = 0; n < 16; n++) {
        sum = _mm512_dpbusd_epi32(sum, one, r[n]);
        _mm512_storeu_si512(to + (at / 4 + n) * PANEL * 4 + 64 * v, r[n]);
      }
      _mm512_storeu_si512(start + at / SPAN * PANEL + 16 * v, _mm512_sub_epi32(_mm512_setzero_si512(), sum));
    }
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
      if (low) __asm__("vdpbf16ps %2, %1, %0" : "+v"(all[c][v]) : "v"(y), "v"(q[v]));
      else __asm__("vpdpbusd %2, %1, %0" : "+v"(all[c][v]) : "v"(y), "v"(q[v]));
  }
}

/* Adds what a span of `count` numbers of a panel and of WIDE rows of x gives, whose scales stand at `scale`. It is not
   inlined, so that all registers are for the whole numbers that are added up. */
static __attribute__((noinline)) void add_span(const uint8_t *x, const uint8_t *scale, int64_t row, const uint8_t *w,
                                               const int32_t *start, int64_t count, __m512 sum[WIDE][DEEP]) {
  __m512i all[WIDE][DEEP];
#pragma GCC unroll 6
  for (int c = 0; c < WIDE; c++)
#pragma GCC unroll 4
    for (int v = 0; v < DEEP; v++) all[c][v] = _mm512_loadu_si512(start + 16 * v);
  for (const uint8_t *end = x + count; x < end; x += 4, w += PANEL * 4) add_four_bytes(all, 0, x, row, w);
#pragma GCC unroll 6
  for (int c = 0; c < WIDE; c++) {
    float by;
    memcpy(&by, scale + c * row, 4);
#pragma GCC unroll 4
    for (int v = 0; v < DEEP; v++)
      sum[c][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(all[c][v]), _mm512_set1_ps(by), sum[c][v]);
  }
}

/* The outputs from `from` on, before `to`, of all rows; 0 where it was done. */
static int multiply_tiles(const Job *job, int64_t from, int64_t to) {
  const int64_t k = job->k, row = laid_row(k), rows = job->rows;
  void *made = malloc((size_t)(PANEL * spans(k) * (SPAN + 4) + 64));
  if (!made) return 1;
  uint8_t *panel = (uint8_t *)(((uintptr_t)made + 63) & ~(uintptr_t)63);
  int32_t *start = (int32_t *)(panel + PANEL * spans(k) * SPAN);
  const int64_t fetched = PANEL * k / ((rows + WIDE - 1) / WIDE); /* bytes of the next panel, beside each tile */
  for (int64_t i = from; i < to; i += PANEL) {
    __m512 scale[DEEP], bias[DEEP];
    __mmask16 real[DEEP];
    pack_panel(job, i, panel, start);
    for (int v = 0; v < DEEP; v++) {
      int64_t left = to - i - 16 * v;
      real[v] = left >= 16 ? 0xffff : left > 0 ? (__mmask16)((1 << left) - 1) : 0;
      scale[v] = _mm512_maskz_loadu_ps(real[v], job->scale + i + 16 * v);
      __m256i low = job->bias ? _mm256_maskz_loadu_epi16(real[v], (const uint16_t *)job->bias + i + 16 * v)
                              : _mm256_setzero_si256();
      bias[v] = (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(low), 16);
    }
    const uint8_t *later = job->weight + (i + PANEL) * k, *end = job->weight + to * k;
    for (int64_t m = 0; m < rows; m += WIDE) {
      for (int64_t n = 0; n < fetched && later < end; n += 64, later += 64) __builtin_prefetch(later);
      const int64_t first = m < rows - WIDE ? m : rows - WIDE; /* some of the last ones are computed twice */
      __m512 sum[WIDE][DEEP] = {{{0}}};
      for (int64_t c = 0; c < WIDE; c++)
        for (int64_t n = 0; n < PANEL; n += 32) __builtin_prefetch((uint16_t *)job->out + (first + c) * job->step + i + n, 1);
      const uint8_t *x = (const uint8_t *)job->laid + first * row, *by = x + spans(k) * SPAN;
      for (int64_t at = 0; at < k; at += SPAN)
        add_span(x + at, by + at / SPAN * 4, row, panel + at * PANEL, start + at / SPAN * PANEL,
                 k - at < SPAN ? k - at : SPAN, sum);
      for (int c = 0; c < WIDE; c++)
        for (int v = 0; v < DEEP; v++) {
          __m256bh low = _mm512_cvtneps_pbh(_mm512_fmadd_ps(sum[c][v], scale[v], bias[v]));
          _mm256_mask_storeu_epi16((uint16_t *)job->out + (first + c) * job->step + i + 16 * v, real[v], (__m256i)low);
        }
    }
  }
  free(made);
  return 0;
}
