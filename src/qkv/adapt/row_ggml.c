/* Products of rows of x in bf16 with a matrix in ggml's blocks of 32 numbers, where the processor multiplies bytes.

   x is rounded to bytes with a scale for each block, as llama.cpp does. With few rows of x each row of weights is read by
   itself, four blocks at a time. With more, blocks of 16 rows of weights are transposed, so that each four numbers of all of
   them lie in one vector, and multiplied with each row of x. A row has the same result in any company, by either way: sums
   of whole numbers are exact, and those of blocks are added in one order. */

#define BLOCK 32
#define ALONE 2 /* rows of x for which rows of weights are read by themselves */

/* Bytes of a row of x as it is laid out: of each four blocks the first halves, then the second ones; then for each block
   its scale, then what its sums begin with, which makes up for weights that are not below 0, or of Q4_1 the sum of its
   numbers. */
static int64_t laid_numbers(int64_t k) { return (k + 127) / 128 * 128; }
static int64_t laid_blocks(int64_t k) { return odd_lines(laid_numbers(k) + k / BLOCK * 8); }
INLINE int64_t place_of(int64_t block) { return block / 4 * 128 + block % 4 * 16; } /* of its first half */

static void lay_out_blocks(const Job *job, int64_t r) {
  const uint16_t *low = (const uint16_t *)job->x + r * job->k;
  uint8_t *to = (uint8_t *)job->laid + r * laid_blocks(job->k);
  float *scale = (float *)(to + laid_numbers(job->k)), *more = scale + job->k / BLOCK;
  for (int64_t b = 0; b < job->k / BLOCK; b++, scale++, more++) {
    vec x[2] = {read(low, b * BLOCK, 1), read(low, b * BLOCK + 16, 1)};
    __m512i sum = _mm512_setzero_si512(), sign = _mm512_set1_epi32(0x7fffffff);
    __m512i most = _mm512_max_epu32(_mm512_and_si512((__m512i)x[0], sign), _mm512_and_si512((__m512i)x[1], sign));
    union { uint32_t u; float f; } top = {_mm512_reduce_max_epu32(most)};
    float by = top.f > 1e-30f ? 127.0f / top.f : 0.0f;
    *scale = top.f / 127.0f;
    for (int p = 0; p < 2; p++) {
      __m512i whole = _mm512_cvtps_epi32((__m512)(x[p] * by));
      sum = _mm512_add_epi32(sum, whole);
      _mm_storeu_si128((__m128i *)(to + place_of(b) + 64 * p), _mm512_cvtepi32_epi8(whole));
    }
    int32_t total = _mm512_reduce_add_epi32(sum), start = -total * (job->kind == Q8_0 ? 128 : 8);
    if (job->kind == Q4_1) *more = *scale * (float)total;
    else memcpy(more, &start, 4);
  }
}

/* Numbers as unsigned bytes: signed ones 128 higher; of 4 bits the low nibbles come first and the high ones second. */
INLINE void open_numbers(int kind, __m512i *first, __m512i *second) {
  const __m512i low = _mm512_set1_epi8(15), up = _mm512_set1_epi8((char)128);
  if (kind == Q8_0) *first = _mm512_xor_si512(*first, up), *second = _mm512_xor_si512(*second, up);
  else *second = _mm512_and_si512(_mm512_srli_epi16(*first, 4), low), *first = _mm512_and_si512(*first, low);
}

/* The fp16 numbers in the high halves, by shifts: converting them would wait for the units that move bytes. */
INLINE __m512 read_halves(__m512i both) {
  __m512i u = _mm512_and_si512(_mm512_srai_epi32(both, 3), _mm512_set1_epi32((int)0x8fffe000));
  return (__m512)((vec)u * 0x1p112f); /* the exponents' offsets differ by 112 */
}

/* What is added to a sum for a block, whose scale of x stands at `by`; `scale` and `plus` are those of 16 rows of weights. */
INLINE __m512 add_block(int kind, __m512 sum, __m512i whole, const float *by, int64_t blocks, __m512 scale, __m512 plus) {
  if (kind != Q4_1) whole = _mm512_add_epi32(whole, (__m512i)_mm512_set1_ps(by[blocks]));
  sum = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(whole), _mm512_set1_ps(*by)), scale, sum);
  return kind == Q4_1 ? _mm512_fmadd_ps(plus, _mm512_set1_ps(by[blocks]), sum) : sum;
}

INLINE __m512i read_four(const uint8_t *at, const int64_t next[3]) { /* 16 bytes of each of four blocks */
  __m512i q = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)at));
  q = _mm512_inserti32x4(q, _mm_loadu_si128((const __m128i *)(at + next[0])), 1);
  q = _mm512_inserti32x4(q, _mm_loadu_si128((const __m128i *)(at + next[1])), 2);
  return _mm512_inserti32x4(q, _mm_loadu_si128((const __m128i *)(at + next[2])), 3);
}

INLINE __m128i read_head(const uint8_t *at) {
  int32_t both;
  memcpy(&both, at, 4);
  return _mm_cvtsi32_si128(both);
}

INLINE __m512i read_heads(const uint8_t *at, const int64_t next[3]) {
  __m512i s = _mm512_broadcastd_epi32(read_head(at));
  s = _mm512_mask_broadcastd_epi32(s, 0x00f0, read_head(at + next[0]));
  s = _mm512_mask_broadcastd_epi32(s, 0x0f00, read_head(at + next[1]));
  return _mm512_mask_broadcastd_epi32(s, 0xf000, read_head(at + next[2]));
}

/* Up to 16 blocks of a row of weights, of which `left` are left: block 4 g + j stands in lane 4 j + g of their fp16 numbers,
   and of their sums with each of `wide` rows of x. */
INLINE void sum_blocks(int kind, const uint8_t *w, int64_t left, const uint8_t *x, int64_t row, int wide, __m512i *to,
                       int64_t step) {
  const int64_t size = block_bytes(kind);
  __m512i heads = _mm512_setzero_si512(), all[ALONE][4];
#pragma GCC unroll 4
  for (int g = 0; g < 4; g++) {
    const int64_t rest = left - 4 * g; /* where fewer than four are left, one is read again; nothing reads its sums */
    const int64_t next[3] = {rest > 1 ? size : 0, rest > 2 ? 2 * size : 0, rest > 3 ? 3 * size : 0};
    const uint8_t *at = rest > 0 ? w + 4 * g * size : w;
    heads = _mm512_mask_mov_epi32(heads, (__mmask16)(0x1111 << g), read_heads(at, next));
    __m512i first = read_four(at + (kind == Q4_1 ? 4 : 2), next), second = first;
    if (kind == Q8_0) second = read_four(at + 18, next);
    open_numbers(kind, &first, &second);
#pragma GCC unroll 4
    for (int64_t line = 0; line < 4 * size; line += 64) __builtin_prefetch(at + line + 8192);
#pragma GCC unroll 4
    for (int c = 0; c < wide; c++) {
      const uint8_t *y = x + c * row + 128 * g;
      all[c][g] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), first, _mm512_loadu_si512(y));
      all[c][g] = _mm512_dpbusd_epi32(all[c][g], second, _mm512_loadu_si512(y + 64));
    }
  }
  *to = heads;
#pragma GCC unroll 4
  for (int c = 0; c < wide; c++) {
    __m512i one = _mm512_add_epi32(_mm512_unpacklo_epi32(all[c][0], all[c][1]), _mm512_unpackhi_epi32(all[c][0], all[c][1]));
    __m512i two = _mm512_add_epi32(_mm512_unpacklo_epi32(all[c][2], all[c][3]), _mm512_unpackhi_epi32(all[c][2], all[c][3]));
    to[(c + 1) * step] = _mm512_add_epi32(_mm512_unpacklo_epi64(one, two), _mm512_unpackhi_epi64(one, two));
  }
}

/* 16 rows of weights with `wide` rows of x from m on, each row of weights by itself. */
INLINE void multiply_alone(const Job *job, int kind, const uint8_t *const rows[16], int wide, int64_t m, __m512 *sum) {
  const int64_t blocks = job->k / BLOCK, parts = (blocks + 15) / 16, size = 16 * block_bytes(kind), row = laid_blocks(job->k);
  const uint8_t *x = (const uint8_t *)job->laid + m * row;
  __m512i kept[(wide + 1) * parts][16];
  for (int n = 0; n < 16; n++) {
    int64_t p = 0;
    for (; 16 * (p + 1) <= blocks; p++) sum_blocks(kind, rows[n] + p * size, 16, x + 512 * p, row, wide, kept[p] + n, 16 * parts);
    if (p < parts) sum_blocks(kind, rows[n] + p * size, blocks - 16 * p, x + 512 * p, row, wide, kept[p] + n, 16 * parts);
  }
  for (int64_t p = 0; p < (wide + 1) * parts; p++) transpose_square(kept[p]);
  for (int c = 0; c < wide; c++) {
    const float *by = (const float *)(x + c * row + laid_numbers(job->k));
    sum[c] = _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; b++) {
      int64_t lane = b % 4 * 4 + b % 16 / 4;
      __m512i heads = kept[b / 16][lane], whole = kept[(c + 1) * parts + b / 16][lane];
      sum[c] = add_block(kind, sum[c], whole, by + b, blocks, read_halves(_mm512_slli_epi32(heads, 16)), read_halves(heads));
    }
  }
}

/* 16 bytes of each of 16 rows: four of each in one vector. */
INLINE void read_fours(const uint8_t *const rows[16], int64_t at, __m512i t[4]) {
  __m512i v[4];
#pragma GCC unroll 4
  for (int n = 0; n < 4; n++) {
    v[n] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(rows[n] + at)));
    v[n] = _mm512_inserti32x4(v[n], _mm_loadu_si128((const __m128i *)(rows[n + 4] + at)), 1);
    v[n] = _mm512_inserti32x4(v[n], _mm_loadu_si128((const __m128i *)(rows[n + 8] + at)), 2);
    v[n] = _mm512_inserti32x4(v[n], _mm_loadu_si128((const __m128i *)(rows[n + 12] + at)), 3);
  }
  __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpackhi_epi32(v[0], v[1]);
  __m512i c = _mm512_unpacklo_epi32(v[2], v[3]), d = _mm512_unpackhi_epi32(v[2], v[3]);
  t[0] = _mm512_unpacklo_epi64(a, c), t[1] = _mm512_unpackhi_epi64(a, c);
  t[2] = _mm512_unpacklo_epi64(b, d), t[3] = _mm512_unpackhi_epi64(b, d);
}

/* What a block of 16 rows of weights and of a row of x gives. */
INLINE __m512i multiply_block(const __m512i q[8], const uint8_t *x) {
  __m512i all[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
#pragma GCC unroll 8
  for (int n = 0; n < 8; n++) {
    int32_t four;
    memcpy(&four, x + n / 4 * 64 + n % 4 * 4, 4);
    all[n / 4] = _mm512_dpbusd_epi32(all[n / 4], q[n], _mm512_set1_epi32(four));
  }
  return _mm512_add_epi32(all[0], all[1]);
}

/* The fp16 numbers of each block of 16 rows of weights, read in the order of memory. */
static void gather_heads(const uint8_t *const rows[16], int64_t blocks, int64_t size, int32_t heads[][16]) {
  for (int n = 0; n < 16; n++)
    for (int64_t b = 0; b < blocks; b++) {
      __builtin_prefetch(rows[n] + b * size + 8192);
      memcpy(heads[b] + n, rows[n] + b * size, 4);
    }
}

/* 16 rows of weights, with their fp16 numbers, and `count` rows of x from m on: a block of all of them after another. */
INLINE void multiply_transposed(const Job *job, int kind, const uint8_t *const rows[16], const int32_t heads[][16], int64_t m,
                                int64_t count, __m512 *sum) {
  const int64_t blocks = job->k / BLOCK, size = block_bytes(kind), row = laid_blocks(job->k);
  const uint8_t *x = (const uint8_t *)job->laid + m * row;
  for (int64_t c = 0; c < count; c++) sum[c] = _mm512_setzero_ps();
  for (int64_t b = 0; b < blocks; b++) {
    __m512i q[8];
    read_fours(rows, b * size + (kind == Q4_1 ? 4 : 2), q);
    if (kind == Q8_0) read_fours(rows, b * size + 18, q + 4);
#pragma GCC unroll 4
    for (int n = 0; n < 4; n++) open_numbers(kind, q + n, q + n + 4);
    const __m512i both = _mm512_loadu_si512(heads[b]);
    const __m512 scale = read_halves(_mm512_slli_epi32(both, 16)), plus = read_halves(both);
    for (int64_t c = 0; c < count; c++) {
      const float *by = (const float *)(x + c * row + laid_numbers(job->k)) + b;
      __m512i whole = multiply_block(q, x + c * row + place_of(b));
      sum[c] = add_block(kind, sum[c], whole, by, blocks, scale, plus);
    }
  }
}

INLINE void multiply_blocks(const Job *job, int kind, const uint8_t *const rows[16], const int32_t heads[][16], int64_t m,
                            int64_t count, __m512 *sum) {
  if (count > ALONE) multiply_transposed(job, kind, rows, heads, m, count, sum);
  else if (count == 2) multiply_alone(job, kind, rows, 2, m, sum);
  else multiply_alone(job, kind, rows, 1, m, sum);
}

/* The outputs from `from` on, before `to`, of all rows. */
static void multiply_ggml(const Job *job, int64_t from, int64_t to) {
  const int64_t blocks = job->k / BLOCK, block = block_bytes(job->kind);
  int32_t heads[blocks][16];
  for (int64_t i = from; i < to; i += 16) {
    const uint8_t *rows[16];
    for (int n = 0; n < 16; n++) rows[n] = job->weight + (i + n < to ? i + n : to - 1) * blocks * block;
    if (job->rows > ALONE) gather_heads(rows, blocks, block, heads);
    for (int64_t m = 0; m < job->rows; m += TOGETHER) {
      int64_t count = job->rows - m < TOGETHER ? job->rows - m : TOGETHER;
      __m512 sum[TOGETHER];
      if (job->kind == Q8_0) multiply_blocks(job, Q8_0, rows, heads, m, count, sum);
      else if (job->kind == Q4_0) multiply_blocks(job, Q4_0, rows, heads, m, count, sum);
      else multiply_blocks(job, Q4_1, rows, heads, m, count, sum);
      for (int64_t c = 0; c < count; c++) write_outputs(job, i, to, m + c, sum[c]);
    }
  }
}
