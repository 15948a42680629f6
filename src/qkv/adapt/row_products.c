/* Products of a few rows with a large matrix of 32, 16, 8 or 4 bits, which are bound by reading that matrix.

   The matrix has n rows of k numbers, k a multiple of 32 (of 16 in FP32), in one of six kinds:
     FP32, BF16  k numbers of 32 or 16 bits   INT8  k signed bytes, and one fp32 scale a row in another array
     Q8_0  blocks of 32: an fp16 scale, 32 signed bytes (ggml's)
     Q4_0  blocks of 32: an fp16 scale, 16 bytes whose low halves are numbers 0-15 and whose high halves are 16-31, plus 8
     Q4_1  the same with an fp16 number after the scale that is added to each, and nothing plus 8
   Sums are in fp32. Each is added up in one order, whatever the number of rows and threads, so that a row has the same
   result in any company. Where the processor has AVX2, an x in bf16 is rounded to whole numbers to be multiplied with
   whole numbers: to 16 bits with a scale for each 1,024 of a row for INT8, to bytes with a scale for each 32 for the others.
   Where it multiplies bytes, that is row_tiles.c and row_ggml.c. Converting such weights to fp32 or bf16 would take two to
   five times as long as reading them. */

#include "vectors.h"

#define MOST 8 /* rows of x that share one reading of a row of weights */
#define SEGMENT 1024 /* numbers of a row of x with one scale, where they have 16 bits: */
#define LARGEST 16383 /* SEGMENT products of it and a signed byte, added up, have 32 bits */

enum { FP32, BF16, INT8, Q8_0, Q4_0, Q4_1 };
#define FOUR_BITS(kind) ((kind) == Q4_0 || (kind) == Q4_1)
/* how x is laid out: numbers of fp32, pairs of bf16, bytes, 16 bits, bytes for tiles and for blocks */
enum { SINGLE, IN_PAIRS, IN_BYTES, IN_WORDS, IN_TILES, IN_BLOCKS };
#if defined(__AVX512BF16__) /* of an x in bf16 */
#define LAID(kind) ((kind) == FP32 ? SINGLE : (kind) == BF16 ? IN_PAIRS : (kind) == INT8 ? IN_TILES : IN_BLOCKS)
#elif LANES >= 8
#define LAID(kind) ((kind) < INT8 ? SINGLE : (kind) == INT8 ? IN_WORDS : IN_BYTES)
#else
#define LAID(kind) SINGLE
#endif
int qkv_laid(int kind) { return LAID(kind); }

typedef struct {
  const uint8_t *weight;
  const float *scale; /* of INT8 */
  const void *bias;   /* n numbers of the output's type, or none */
  const void *x;      /* rows of k numbers */
  void *out;          /* rows of n numbers; where a matrix is unpacked, n rows of k */
  int64_t rows, n, k, step; /* step: numbers from one row of out to the next */
  int32_t kind, narrow;     /* narrow: x, bias and out are bf16, else fp32 */
  void *laid;               /* x as multiply_tile reads it */
} Job;

INLINE int64_t laid_room(int64_t k) { return k < 64 ? 64 : k; } /* numbers of fp32 for a row of x as it is laid out */

typedef void (*Barrier)(void); /* OpenMP's GOMP_barrier */

typedef struct {
  const Job *jobs;
  Ask number;
  Barrier barrier; /* where x is not laid out yet */
  int64_t count;
  int32_t failed;
} Team;

INLINE vec read_scale(const uint8_t *at) { /* an fp16 number in all lanes */
  uint16_t h;
  memcpy(&h, at, 2);
#if LANES == 16
  return (vec)_mm512_cvtph_ps(_mm256_set1_epi16((short)h));
#elif LANES == 8
  return (vec)_mm256_cvtph_ps(_mm_set1_epi16((short)h));
#else
  union { uint32_t u; float f; } v = {(uint32_t)(h & 0x7fff) << 13};
  v.f *= 0x1p112f; /* the exponents' offsets differ by 112 */
  v.u |= (uint32_t)(h & 0x8000) << 16;
  return (vec){v.f, v.f, v.f, v.f};
#endif
}

INLINE vec read_int8(const uint8_t *at) {
#if LANES == 16
  return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)at)));
#elif LANES == 8
  return (vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)at)));
#else
  const int8_t *b = (const int8_t *)at;
  return (vec){b[0], b[1], b[2], b[3]};
#endif
}

INLINE int64_t block_bytes(int kind) {
  static const int64_t of[] = {128, 64, 32, 34, 18, 20};
  return of[kind];
}

/* The 32 numbers of a block, before their scale, which is returned: 1 where it is not the block's own. */
INLINE vec read_block(int kind, const uint8_t *at, vec q[PARTS]) {
  if (FOUR_BITS(kind)) {
    const uint8_t *pairs = at + (kind == Q4_0 ? 2 : 4);
    const float least = kind == Q4_0 ? -8 : 0;
    for (int p = 0; p < PARTS / 2; p++) {
#if LANES == 16
      const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
      __m512i i = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)pairs));
      q[0] = (vec)_mm512_permutexvar_ps(i, (__m512)((vec)table + least)); /* only the low four bits of an index count */
      q[1] = (vec)_mm512_permutexvar_ps(_mm512_srli_epi32(i, 4), (__m512)((vec)table + least));
#elif LANES == 8
      __m256i i = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(pairs + 8 * p)));
      q[p] = (vec)_mm256_cvtepi32_ps(_mm256_and_si256(i, _mm256_set1_epi32(15))) + least;
      q[p + 2] = (vec)_mm256_cvtepi32_ps(_mm256_srli_epi32(i, 4)) + least;
#else
      const uint8_t *b = pairs + 4 * p;
      q[p] = (vec){b[0] & 15, b[1] & 15, b[2] & 15, b[3] & 15} + least;
      q[p + 4] = (vec){b[0] >> 4, b[1] >> 4, b[2] >> 4, b[3] >> 4} + least;
#endif
    }
    if (kind == Q4_0) return read_scale(at);
    vec scale = read_scale(at), plus = read_scale(at + 2);
    for (int p = 0; p < PARTS; p++) q[p] = q[p] * scale + plus;
    return (vec){0} + 1;
  }
  for (int p = 0; p < PARTS; p++)
    q[p] = kind == FP32 ? (vec)*(const loose *)(at + 4 * LANES * p) : kind == BF16 ? read_bf16(at + 2 * LANES * p)
           : read_int8(at + (kind == Q8_0 ? 2 : 0) + LANES * p);
  return kind == Q8_0 ? read_scale(at) : (vec){0} + 1;
}

#if LANES >= 8
/* 32 numbers of x as bytes of a scale; eight times the sum of each four bytes, as Q4_0 stands eight too high; and the sum
   of the numbers, in the first lane. */
typedef struct {
  int8_t x[32];
  int32_t eight[8];
  float sum[8], scale, spare[7];
} Bytes;

INLINE __m256 read_eight(const uint16_t *low) { /* numbers of bf16 */
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)low)), 16));
}

INLINE void write_eight(uint16_t *low, __m256 x) { /* as `narrow` rounds */
  __m256i u = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  u = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  u = _mm256_blendv_epi8(u, _mm256_set1_epi32(0x7fc0), _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  u = _mm256_permute4x64_epi64(_mm256_packus_epi32(u, u), 0xd8);
  _mm_storeu_si128((__m128i *)low, _mm256_castsi256_si128(u));
}

INLINE float largest_of(__m256 x) {
  float lanes[8], top = 0;
  _mm256_storeu_ps(lanes, x);
  for (int i = 0; i < 8; i++) top = lanes[i] > top ? lanes[i] : top;
  return top;
}

INLINE __m256i round_bytes(const uint16_t *low, float *scale) { /* 32 numbers as bytes of a scale */
  const __m256 sign = _mm256_set1_ps(-0.0f);
  __m256 x[4], most = _mm256_setzero_ps(), bad = most; /* bad: NaN where one is not finite, else 0 */
  for (int p = 0; p < 4; p++) {
    x[p] = read_eight(low + 8 * p);
    most = _mm256_max_ps(most, _mm256_andnot_ps(sign, x[p]));
    bad = _mm256_fmadd_ps(x[p], _mm256_setzero_ps(), bad);
  }
  float top = largest_of(most);
  const __m256 by = _mm256_set1_ps(top > 1e-30f ? 127.0f / top : 0.0f);
  __m256i n[4];
  for (int p = 0; p < 4; p++) n[p] = _mm256_cvtps_epi32(_mm256_mul_ps(x[p], by));
  *scale = top / 127.0f + add_eight(bad);
  __m256i all = _mm256_packs_epi16(_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3]));
  return _mm256_permutevar8x32_epi32(all, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)); /* packing works in halves */
}

INLINE __m256i add_fours(__m256i x, int by) { /* the sums of each four bytes times a number of 8 bits */
  return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8((char)by), x), _mm256_set1_epi16(1));
}

INLINE void write_bytes(const uint16_t *low, Bytes *to) {
  __m256i all = round_bytes(low, &to->scale), eight = add_fours(all, 8);
  _mm256_storeu_si256((__m256i *)to->x, all);
  _mm256_storeu_si256((__m256i *)to->eight, eight);
  memset(to->sum, 0, sizeof to->sum);
  to->sum[0] = to->scale * 0.125f * add_eight(_mm256_cvtepi32_ps(eight));
}

/* The 32 numbers of a block of weights before their scale; of 4 bits they are 0 to 15. */
INLINE __m256i read_bytes(int kind, const uint8_t *at) {
  if (!FOUR_BITS(kind)) return _mm256_loadu_si256((const __m256i *)(at + 2));
  __m128i pairs = _mm_loadu_si128((const __m128i *)(at + (kind == Q4_0 ? 2 : 4)));
  return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(pairs, 4), pairs), _mm256_set1_epi8(15));
}

INLINE __m256 read_half(const uint8_t *at) { /* an fp16 number in all lanes */
  uint16_t h;
  memcpy(&h, at, 2);
  return _mm256_cvtph_ps(_mm_set1_epi16((short)h));
}

/* What a block adds to the sums of a row of weights. A signed byte is taken as its size, its sign goes to x. */
INLINE void add_bytes(int kind, int wide, __m256 *sum, const uint8_t *at, const Bytes *x) {
  __m256i q = read_bytes(kind, at), large = FOUR_BITS(kind) ? q : _mm256_abs_epi8(q);
  __m256 scale = read_half(at), plus = kind == Q4_1 ? read_half(at + 2) : scale;
#pragma GCC unroll 8
  for (int c = 0; c < wide; c++) {
    __m256i y = _mm256_loadu_si256((const __m256i *)x[c].x);
    __m256i pairs = _mm256_maddubs_epi16(large, FOUR_BITS(kind) ? y : _mm256_sign_epi8(y, q));
    __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    if (kind == Q4_0) fours = _mm256_sub_epi32(fours, _mm256_loadu_si256((const __m256i *)x[c].eight));
    __m256 by = _mm256_mul_ps(_mm256_set1_ps(x[c].scale), scale);
    if (kind == Q4_1) sum[c] = _mm256_fmadd_ps(plus, _mm256_loadu_ps(x[c].sum), sum[c]);
    sum[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(fours), by, sum[c]);
  }
}
#endif

INLINE void write_sum(const Job *job, int kind, int64_t i, int64_t row, float sum) {
  float y = sum * (kind == INT8 ? job->scale[i] : 1.0f);
  write_one(job->out, row * job->step + i, job->narrow, y + (job->bias ? read_one(job->bias, i, job->narrow) : 0.0f));
}

#if LANES >= 8
/* multiply_tile where x lies in bytes. */
INLINE void multiply_bytes(const Job *job, int kind, int deep, int wide, int64_t i, int64_t m, int64_t real) {
  __m256 sum[4][MOST] = {{{0}}};
  int64_t block = block_bytes(kind), blocks = job->k / 32, size = blocks * block;
  int64_t ahead = (1 + 8192 / (deep * size)) * deep * size;
  const uint8_t *w = job->weight + i * size;
  const Bytes *x = (const Bytes *)job->laid + m * blocks;
  for (int64_t b = 0; b < blocks; b++, w += block, x += wide)
#pragma GCC unroll 4
    for (int r = 0; r < deep; r++) {
      __builtin_prefetch(w + r * size + ahead);
      add_bytes(kind, wide, sum[r], w + r * size, x);
    }
#pragma GCC unroll 4
  for (int r = 0; r < deep; r++)
#pragma GCC unroll 8
    for (int c = 0; c < wide; c++)
      if (c < real) write_sum(job, kind, i + r, m + c, add_eight(sum[r][c]));
}

/* Vectors of numbers of 16 bits, and of the sums of their products. */
#if LANES == 16
#define EACH 32
typedef __m512i words;
INLINE words read_words(const int16_t *at) { return _mm512_loadu_si512(at); }
INLINE words widen_bytes(const uint8_t *at) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)at)); }
INLINE vec round_words(whole x) { return (vec)_mm512_cvtepi32_ps((__m512i)x); }
#else
#define EACH 16
typedef __m256i words;
INLINE words read_words(const int16_t *at) { return _mm256_loadu_si256((const __m256i *)at); }
INLINE words widen_bytes(const uint8_t *at) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)at)); }
INLINE vec round_words(whole x) { return (vec)_mm256_cvtepi32_ps((__m256i)x); }
#endif

INLINE void add_products(words *sum, words q, words y) {
  words all = *sum; /* by the instruction's name where GCC would copy sums to and fro */
#if LANES == 16
  all = _mm512_add_epi32(all, _mm512_madd_epi16(q, y));
#else
  words pairs = _mm256_madd_epi16(q, y);
  __asm__("vpaddd %1, %0, %0" : "+x"(all) : "x"(pairs));
#endif
  *sum = all;
}

/* `count` numbers of x in 16 bits, each EACH of them `step` behind the last. Returns their scale. */
INLINE float write_words(const uint16_t *low, int64_t count, int64_t step, int16_t *to) {
  __m256 most = _mm256_setzero_ps(), bad = most; /* bad: NaN where one is not finite, else 0 */
  for (int64_t i = 0; i < count; i += 8) {
    __m256 x = read_eight(low + i);
    most = _mm256_max_ps(most, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x));
    bad = _mm256_fmadd_ps(x, _mm256_setzero_ps(), bad);
  }
  float top = largest_of(most);
  const __m256 by = _mm256_set1_ps(top > 1e-30f ? LARGEST / top : 0.0f);
  for (int64_t i = 0; i < count; i += 16) {
    __m256i n[2];
    for (int p = 0; p < 2; p++) n[p] = _mm256_cvtps_epi32(_mm256_mul_ps(read_eight(low + i + 8 * p), by));
    _mm256_storeu_si256((__m256i *)(to + i / EACH * step + i % EACH),
                        _mm256_permute4x64_epi64(_mm256_packs_epi32(n[0], n[1]), 0xd8));
  }
  return top / LARGEST + add_eight(bad);
}

#if LANES == 16
INLINE __m256 fold(vec x) { return _mm256_add_ps(_mm512_castps512_ps256((__m512)x), _mm512_extractf32x8_ps((__m512)x, 1)); }
#else
INLINE __m256 fold(vec x) { return (__m256)x; }
#endif

/* The result of a row of weights and one of x, added up in the same order as eight of them are. */
INLINE void write_word_sum(const Job *job, int64_t i, int64_t row, vec sum) {
  __m256 x = fold(sum), two = _mm256_hadd_ps(x, x), four = _mm256_hadd_ps(two, two);
  __m128 y = _mm_add_ss(_mm256_castps256_ps128(four), _mm256_extractf128_ps(four, 1));
  y = _mm_fmadd_ss(y, _mm_set_ss(job->scale[i]), _mm_set_ss(job->bias ? read_one(job->bias, i, 1) : 0.0f));
  write_one(job->out, row * job->step + i, 1, _mm_cvtss_f32(y));
}

/* Eight results at once: of `deep` rows of weights from i on, and of rows of x from `row` on, whose sums begin at c. */
INLINE void write_eight_sums(const Job *job, int deep, vec sum[4][4], int64_t i, int64_t row, int c, int64_t real) {
  __m256 x[8];
  float scale[8], bias[8] = {0};
#pragma GCC unroll 8
  for (int v = 0; v < 8; v++) {
    x[v] = fold(sum[v % deep][c + v / deep]), scale[v] = job->scale[i + v % deep];
    if (job->bias) bias[v] = read_one(job->bias, i + v % deep, 1);
  }
  __m256 one = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
  __m256 two = _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
  x[0] = _mm256_add_ps(_mm256_permute2f128_ps(one, two, 0x20), _mm256_permute2f128_ps(one, two, 0x31));
  uint16_t out[8];
  write_eight(out, _mm256_fmadd_ps(x[0], _mm256_loadu_ps(scale), _mm256_loadu_ps(bias)));
  for (int v = 0; v < 8 / deep && c + v < real; v++)
    memcpy((uint16_t *)job->out + (row + v) * job->step + i, out + v * deep, 2 * (size_t)deep);
}

/* Adds to `all` what EACH numbers of `deep` rows of weights and of `wide` rows of x give. */
INLINE void add_words(words all[4][4], int deep, int wide, const uint8_t *w, int64_t k, const int16_t *x) {
  words q[4];
#pragma GCC unroll 4
  for (int r = 0; r < deep; r++) q[r] = widen_bytes(w + r * k);
#pragma GCC unroll 4
  for (int c = 0; c < wide; c++) {
    words y = read_words(x + EACH * c);
    __asm__("" : "+v"(y)); /* it is read once */
#pragma GCC unroll 4
    for (int r = 0; r < deep; r++) add_products(&all[r][c], q[r], y);
  }
}

/* multiply_tile where x lies in 16 bits. Whole numbers have the same sum in any order. */
INLINE void multiply_words(const Job *job, int deep, int wide, int64_t i, int64_t m, int64_t real) {
  const int64_t k = job->k, ahead = (1 + 8192 / (deep * k)) * deep * k;
  const uint8_t *w = job->weight + i * k;
  const int16_t *x = (const int16_t *)((const float *)job->laid + m * k);
  const float *scale = (const float *)(x + wide * k);
  vec sum[4][4] = {{{0}}};
  for (int64_t from = 0, b = 0; from < k; from += SEGMENT, scale += 4) {
    words all[2][4][4] = {{{{0}}}}; /* two of each, as a single one would wait for itself */
    int64_t end = from + SEGMENT < k ? from + SEGMENT : k;
    for (; b + EACH < end; b += 2 * EACH, w += 2 * EACH, x += 2 * EACH * wide) {
#pragma GCC unroll 4
      for (int r = 0; r < deep; r++)
        if (LANES == 16 || wide < 4) __builtin_prefetch(w + r * k + ahead);
      add_words(all[0], deep, wide, w, k, x);
      add_words(all[deep * wide <= 4], deep, wide, w + EACH, k, x + EACH * wide);
    }
    if (b < end) add_words(all[0], deep, wide, w, k, x); /* the last of a row */
#pragma GCC unroll 4
    for (int r = 0; r < deep; r++)
#pragma GCC unroll 4
      for (int c = 0; c < wide; c++) sum[r][c] += round_words((whole)all[0][r][c] + (whole)all[1][r][c]) * scale[c];
  }
  const int each = deep * wide < 8 ? 1 : 8 / deep; /* rows of x of which results are written together */
  for (int c = 0; c < wide && c < real; c += each) {
    if (each > 1) write_eight_sums(job, deep, sum, i, m + c, c, real);
    else for (int r = 0; r < deep; r++) write_word_sum(job, i + r, m + c, sum[r][c]);
  }
}
#endif

#if defined(__AVX512BF16__)
INLINE void add_pairs(vec *sum, int wide, const uint16_t *w, const uint16_t *x) { /* what 32 numbers give */
  __m512bh q = (__m512bh)_mm512_loadu_si512(w);
#pragma GCC unroll 8
  for (int c = 0; c < wide; c++)
    sum[c] = (vec)_mm512_dpbf16_ps((__m512)sum[c], q, (__m512bh)_mm512_loadu_si512(x + 32 * c));
}

/* multiply_tile of one row of weights where x lies in pairs of bf16: its even blocks have one sum and the odd ones another,
   as a single one would wait for itself. */
INLINE void multiply_pairs(const Job *job, int wide, int64_t i, int64_t m, int64_t real) {
  const int64_t k = job->k, ahead = (1 + 4096 / k) * k;
  const uint16_t *w = (const uint16_t *)job->weight + i * k, *x = (const uint16_t *)job->laid + m * k;
  vec sum[2][MOST] = {{{0}}};
  int64_t b = 0;
  for (; b + 32 < k; b += 64, w += 64, x += 64 * wide) {
    __builtin_prefetch(w + ahead), __builtin_prefetch(w + ahead + 32);
    add_pairs(sum[0], wide, w, x);
    add_pairs(sum[1], wide, w + 32, x + 32 * wide);
  }
  if (b < k) add_pairs(sum[0], wide, w, x);
#pragma GCC unroll 8
  for (int c = 0; c < wide; c++)
    if (c < real) write_sum(job, BF16, i, m + c, add_up(sum[0][c] + sum[1][c]));
}

/* The sum of the lanes of each of 16 vectors, added as add_up does: that of number 4 * r + c in lane 4 * c + r. */
INLINE __m512 add_up_all(const __m512 s[16]) {
  __m512 t[8], u[4], v[2];
#pragma GCC unroll 8
  for (int n = 0; n < 8; n++) {
    __m512 a = s[2 * n], b = s[2 * n + 1];
    t[n] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  }
#pragma GCC unroll 4
  for (int n = 0; n < 4; n++) {
    __m512 a = t[2 * n], b = t[2 * n + 1];
    u[n] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  }
#pragma GCC unroll 2
  for (int n = 0; n < 2; n++) {
    __m512d a = _mm512_castps_pd(u[2 * n]), b = _mm512_castps_pd(u[2 * n + 1]);
    v[n] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  return _mm512_add_ps(_mm512_shuffle_ps(v[0], v[1], 0x88), _mm512_shuffle_ps(v[0], v[1], 0xdd));
}

/* The sums of four rows of weights with four of x over every second block from number b on. For each block `lines` of
   what comes later are fetched, from `later` on, so that reading goes on while numbers are multiplied. */
INLINE const uint16_t *add_square(__m512 s[16], const uint16_t *w, const uint16_t *x, int64_t k, int64_t b,
                                  const uint16_t *later, int64_t lines) {
#pragma GCC unroll 16
  for (int n = 0; n < 16; n++) s[n] = _mm512_setzero_ps();
  for (; b < k; b += 64) {
    for (int64_t n = 0; n < lines; n++, later += 32) __builtin_prefetch(later);
    __m512bh q[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) q[r] = (__m512bh)_mm512_loadu_si512(w + r * k + b);
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
      __m512bh y = (__m512bh)_mm512_loadu_si512(x + 4 * b + 32 * c);
#pragma GCC unroll 4
      for (int r = 0; r < 4; r++) s[4 * r + c] = _mm512_dpbf16_ps(s[4 * r + c], q[r], y);
    }
  }
  return later;
}

/* multiply_tile of four rows of weights and four of x in pairs, each added up as in multiply_pairs: first the even blocks,
   then the odd ones, as there are no registers for both sums. Each four of x fetch their share of the next weights. */
INLINE void multiply_square(const Job *job, int64_t i, int64_t m, int64_t real) {
  const int64_t k = job->k, fours = (job->rows + 3) / 4, lines = (4 + fours - 1) / fours;
  const uint16_t *w = (const uint16_t *)job->weight + i * k, *x = (const uint16_t *)job->laid + m * k;
  const uint16_t *later = w + 4 * k + m / 4 * (k / 8) / fours * 32;
  __m512 s[16], even[16];
  later = add_square(s, w, x, k, 0, later, lines);
#pragma GCC unroll 16
  for (int n = 0; n < 16; n++) even[n] = s[n];
  add_square(s, w, x, k, 32, later, lines);
#pragma GCC unroll 16
  for (int n = 0; n < 16; n++) s[n] = _mm512_add_ps(even[n], s[n]);
  float bias[4] = {0};
  for (int r = 0; r < 4 && job->bias; r++) bias[r] = read_one(job->bias, i + r, 1);
  __m512 all = _mm512_add_ps(add_up_all(s), _mm512_broadcast_f32x4(_mm_loadu_ps(bias)));
  uint16_t out[16];
  write_eight(out, _mm512_castps512_ps256(all));
  write_eight(out + 8, _mm512_extractf32x8_ps(all, 1));
  for (int c = 0; c < 4 && c < real; c++) memcpy((uint16_t *)job->out + (m + c) * job->step + i, out + 4 * c, 8);
}
#endif

#if defined(__AVX512BF16__)
#include "row_tiles.c"
#include "row_ggml.c"
#define UNIT(job) (how_laid(job) < IN_TILES ? 4 : how_laid(job) == IN_TILES && (job)->rows > FEW ? PANEL : 16)
#else
#define UNIT(job) 4
#endif

/* `deep` rows of weights from row i on, times `wide` rows of x from row m on, which lie block by block side by side;
   the first `real` of them are written. */
INLINE void multiply_tile(const Job *job, int kind, int laid, int deep, int wide, int64_t i, int64_t m, int64_t real) {
#if defined(__AVX512BF16__)
  if (laid == IN_PAIRS) {
    if (deep == 4) multiply_square(job, i, m, real);
    else multiply_pairs(job, wide, i, m, real);
    return;
  }
#endif
#if LANES >= 8
  if (laid == IN_BYTES) {
    multiply_bytes(job, kind, deep, wide, i, m, real);
    return;
  }
  if (laid == IN_WORDS) {
    multiply_words(job, deep, wide, i, m, real);
    return;
  }
#endif
  vec sum[4][MOST] = {{{0}}};
  int64_t k = job->k, block = block_bytes(kind), size = kind == FP32 ? 4 * k : k / 32 * block;
  int64_t ahead = (1 + 8192 / (deep * size)) * deep * size;
  const uint8_t *w = job->weight + i * size;
  const float *x32 = (const float *)job->laid + m * k;
  for (int64_t b = 0; b < k / 32; b++, w += block, x32 += 32 * wide) {
#pragma GCC unroll 4
    for (int r = 0; r < deep; r++) __builtin_prefetch(w + r * size + ahead); /* rows that come later */
#pragma GCC unroll 4
    for (int r = 0; r < deep; r++) {
      vec q[PARTS];
      vec scale = read_block(kind, w + r * size, q);
#pragma GCC unroll 8
      for (int c = 0; c < wide; c++) {
        if (kind == FP32) { /* fewest operations: many rows are bound by them */
#pragma GCC unroll 8
          for (int p = 0; p < PARTS; p++) sum[r][c] += q[p] * *(const loose *)(x32 + 32 * c + p * LANES);
          continue;
        }
        vec y = q[0] * *(const loose *)(x32 + 32 * c);
#pragma GCC unroll 8
        for (int p = 1; p < PARTS; p++) y += q[p] * *(const loose *)(x32 + 32 * c + p * LANES);
        sum[r][c] += kind == Q4_0 || kind == Q8_0 ? y * scale : y;
      }
    }
  }
  if (kind == FP32 && k % 32) /* half a block is left */
#pragma GCC unroll 4
    for (int r = 0; r < deep; r++)
#pragma GCC unroll 8
      for (int c = 0; c < wide; c++)
#pragma GCC unroll 4
        for (int p = 0; p < PARTS / 2; p++)
          sum[r][c] += *(const loose *)(w + r * size + 4 * LANES * p) * *(const loose *)(x32 + 16 * c + p * LANES);
#pragma GCC unroll 4
  for (int r = 0; r < deep; r++)
#pragma GCC unroll 8
    for (int c = 0; c < wide; c++)
      if (c < real) write_sum(job, kind, i + r, m + c, add_up(sum[r][c]));
}

/* Four rows of weights, or the last few; as many at a time as there are registers for, but one after another where the
   rows of x are so few that all waits for memory: a single stream is read fastest, if each of its sums need not wait for
   itself as those of fp32 do. */
INLINE void multiply_rows(const Job *job, int kind, int laid, int wide, int64_t i, int64_t m, int64_t left) {
  int deep = wide <= 4 ? 2 : 1;
  if (laid == IN_PAIRS) deep = wide == 4 ? 4 : 1;
  else if (LANES == 16) deep = laid == IN_BYTES || (wide <= 2 && kind != FP32) ? 1 : wide <= 4 ? 4 : 2;
  else if (wide == 1 || (laid == IN_WORDS && wide == 2)) deep = 4;
  int64_t end = i + (left < 4 ? left : 4), real = job->rows - m;
  for (; i + deep <= end; i += deep) multiply_tile(job, kind, laid, deep, wide, i, m, real);
  for (; i < end; i++) multiply_tile(job, kind, laid, 1, wide, i, m, real);
}

INLINE int how_laid(const Job *job) { return job->narrow ? LAID(job->kind) : SINGLE; }

INLINE int64_t widest(int laid) { return laid == IN_WORDS || laid == IN_PAIRS ? 4 : MOST; }

/* Rows of x that are multiplied together where so many are left: some may only fill. */
INLINE int64_t choose_width(int laid, int64_t left) { return left < 3 ? left : left < 5 ? 4 : widest(laid); }

#define WIDTH(kind, laid, wide) case wide: multiply_rows(job, kind, laid, wide, i, m, left); break;
#define WAY(kind, laid, name) \
  static void name(const Job *job, int64_t i, int64_t m, int64_t left) { \
    switch (choose_width(laid, job->rows - m)) { WIDTH(kind, laid, 1) WIDTH(kind, laid, 2) WIDTH(kind, laid, 4) \
                                           WIDTH(kind, laid, 8) } \
  }
#define BOTH(kind) WAY(kind, SINGLE, wide_##kind) WAY(kind, LAID(kind), narrow_##kind)
WAY(FP32, SINGLE, wide_FP32) WAY(BF16, LAID(BF16), narrow_BF16) BOTH(INT8) BOTH(Q8_0) BOTH(Q4_0) BOTH(Q4_1)
typedef void (*Way)(const Job *, int64_t, int64_t, int64_t);
static const Way WAYS[][2] = {{wide_FP32, 0}, {0, narrow_BF16}, {wide_INT8, narrow_INT8}, {wide_Q8_0, narrow_Q8_0},
                              {wide_Q4_0, narrow_Q4_0}, {wide_Q4_1, narrow_Q4_1}}; /* by kind, and whether x is bf16 */

static int multiply_part(const Job *job, int64_t from, int64_t to) {
  int laid = how_laid(job);
#if defined(__AVX512BF16__)
  if (laid == IN_TILES) return multiply_tiles(job, from, to);
  if (laid == IN_BLOCKS) return multiply_ggml(job, from, to), 0;
#endif
  int64_t most = widest(laid), block = laid == IN_WORDS && job->k < 6144 ? 24576 / job->k / 4 * 4 : 4;
  for (int64_t next = from; next < to; next += block) /* the weights of these rows stay in the cache */
    for (int64_t m = 0; m < job->rows; m += most)
      for (int64_t i = next; i < to && i < next + block; i += 4) WAYS[job->kind][job->narrow](job, i, m, to - i);
  return 0;
}

#define UNPACK(kind) case kind: scale *= read_block(kind, at, q); break;
static int unpack_part(const Job *job, int64_t from, int64_t to) {
  int64_t blocks = job->k / 32, block = block_bytes(job->kind);
  for (int64_t i = from; i < to; i++)
    for (int64_t b = 0; b < blocks; b++) {
      const uint8_t *at = job->weight + (i * blocks + b) * block;
      int64_t out = (i * blocks + b) * 32;
      vec scale = (vec){0} + (job->kind == INT8 ? job->scale[i] : 1.0f);
      vec q[PARTS] = {{0}};
      switch (job->kind) { UNPACK(FP32) UNPACK(BF16) UNPACK(INT8) UNPACK(Q8_0) UNPACK(Q4_0) UNPACK(Q4_1) }
      for (int p = 0; p < PARTS; p++) write(job->out, out + LANES * p, job->narrow, q[p] * scale);
    }
  return 0;
}

/* What thread `number` of `threads` does of some jobs; 0 where it was done. */
static int multiply_share(const Job *jobs, int64_t count, int64_t number, int64_t threads) {
  int failed = 0;
  for (const Job *job = jobs; job < jobs + count; job++) {
    int64_t unit = UNIT(job), n = job->n, each = ((n + unit - 1) / unit + threads - 1) / threads * unit;
    int64_t from = number * each, to = from + each < n ? from + each : n;
    if (from < to) failed |= (job->rows ? multiply_part : unpack_part)(job, from, to);
  }
  return failed;
}

/* x for multiply_tile, from row m on as many as are multiplied together: the first block of all, then the second of all.
   In 16 bits the scales of all stand behind them. */
static void lay_out_group(const Job *job, int64_t m) {
  const int laid = how_laid(job);
  void *to = job->laid;
  int64_t k = job->k, wide = choose_width(laid, job->rows - m), real = job->rows - m < wide ? job->rows - m : wide;
#if defined(__AVX512BF16__)
  if (laid == IN_TILES || laid == IN_BLOCKS) {
    for (int64_t c = 0; c < real; c++) (laid == IN_TILES ? lay_out_row : lay_out_blocks)(job, m + c);
    return;
  }
#endif
#if LANES >= 8
  if (laid == IN_BYTES) {
    Bytes *bytes = (Bytes *)to + m * k / 32;
    memset(bytes, 0, (size_t)(wide * k / 32) * sizeof(Bytes));
    for (int64_t c = 0; c < real; c++)
      for (int64_t b = 0; b < k / 32; b++) write_bytes((const uint16_t *)job->x + (m + c) * k + 32 * b, bytes + b * wide + c);
    return;
  }
#endif
  if (real < wide) memset((float *)to + m * k, 0, (size_t)(wide * k) * sizeof(float));
  for (int64_t c = 0; c < real; c++) {
#if LANES >= 8
    if (laid == IN_WORDS) {
      const uint16_t *low = (const uint16_t *)job->x + (m + c) * k;
      int16_t *at_words = (int16_t *)((float *)to + m * k);
      float *scales = (float *)(at_words + wide * k) + c;
      for (int64_t at = 0; at < k; at += SEGMENT, scales += 4)
        *scales = write_words(low + at, k - at < SEGMENT ? k - at : SEGMENT, EACH * wide, at_words + at * wide + EACH * c);
      continue;
    }
#endif
    for (int64_t b = 0; b < k / 32; b++) {
      int64_t from = (m + c) * k + 32 * b, at = m * k + (b * wide + c) * 32;
      const uint16_t *low = (const uint16_t *)job->x + from;
      if (laid) memcpy((uint16_t *)to + at, low, 64);
      else for (int p = 0; p < PARTS; p++) write(to, at + LANES * p, 0, read(job->x, from + LANES * p, job->narrow));
    }
    if (k % 32) /* of FP32 */
      memcpy((float *)to + m * k + k / 32 * wide * 32 + 16 * c, (const float *)job->x + (m + c) * k + k / 32 * 32, 64);
  }
}

/* What thread `number` of `threads` lays out of x for some jobs: once for all neighbours of one kind. */
static void lay_out_share(const Job *jobs, int64_t count, int64_t number, int64_t threads) {
  for (int64_t n = 0; n < count; n++) {
    if (n && jobs[n].kind == jobs[n - 1].kind) continue;
    int64_t most = widest(how_laid(jobs + n)), groups = (jobs[n].rows + most - 1) / most;
    for (int64_t g = (groups * number + threads - 1) / threads; g < (groups * (number + 1) + threads - 1) / threads; g++)
      lay_out_group(jobs + n, g * most);
  }
}

static void work(void *given) {
  Team *team = given;
  int64_t number = team->number ? team->number() : 0, threads = count_threads(team->number);
  if (team->barrier) {
    lay_out_share(team->jobs, team->count, number, threads);
    team->barrier();
  }
  if (multiply_share(team->jobs, team->count, number, threads)) team->failed = 1;
}

/* Of each job out [rows, n] = x [rows, k] times its matrix, plus bias; 0 where it was done. No rows: out [n, k] is the
   matrix. Jobs of one call, at most four, read the same x; those of one kind in a row share what is laid out of it. */
int qkv_run(const Job *given, int64_t count, Fork fork, Ask number, Barrier barrier, int64_t threads) {
  Job jobs[4];
  void *made[4] = {0};
  int64_t rows = (given->rows + MOST - 1) / MOST * MOST, ready = 0;
  Team team = {jobs, threads > 1 ? number : 0, threads > 1 && rows > MOST ? barrier : 0, count, 0};
  for (; ready < count && ready < 4; ready++) {
    Job *job = jobs + ready;
    *job = given[ready];
    if (ready && job->kind == job[-1].kind) job->laid = job[-1].laid;
    else if (rows) {
      if (!(made[ready] = malloc((size_t)(rows * laid_room(job->k) + 16) * sizeof(float)))) break;
      job->laid = (void *)(((uintptr_t)made[ready] + 63) & ~(uintptr_t)63); /* no vector lies across two lines */
    }
  }
  if (ready == count) {
    if (rows && !team.barrier) lay_out_share(jobs, count, 0, 1);
    if (threads > 1) fork(work, &team, (unsigned)threads, 0);
    else work(&team);
  }
  for (int i = 0; i < 4; i++) free(made[i]);
  return ready < count || team.failed;
}
