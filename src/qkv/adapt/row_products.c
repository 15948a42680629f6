/* Products of a few rows with a large matrix of 16, 8 or 4 bits, which are bound by reading that matrix.

   The matrix has n rows of k numbers, k a multiple of 32, in one of four kinds:
     BF16  k numbers of 16 bits              INT8  k signed bytes, and one fp32 scale a row in another array
     Q8_0  blocks of 32: an fp16 scale, 32 signed bytes (ggml's)
     Q4_0  blocks of 32: an fp16 scale, 16 bytes whose low halves are numbers 0-15 and whose high halves are 16-31, plus 8
   Sums are in fp32. Each is added up in one order, whatever the number of rows and threads, so that a row has the same
   result in any company. Vectors are the compiler's own; intrinsics stand where it does not find the instruction. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif
#define PARTS (32 / LANES) /* vectors of a block */
#define MOST 8             /* rows of x that share one reading of a row of weights */

enum { BF16, INT8, Q8_0, Q4_0 };

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias)); /* anywhere in memory */
typedef uint32_t bits __attribute__((vector_size(4 * LANES)));
#define INLINE static inline __attribute__((always_inline))

typedef struct {
  const uint8_t *weight;
  const float *scale; /* of INT8 */
  const void *bias;   /* n numbers of the output's type, or none */
  const void *x;      /* rows of k numbers */
  void *out;          /* rows of n numbers; where a matrix is unpacked, n rows of k */
  int64_t rows, n, k;
  int32_t kind, narrow; /* narrow: x, bias and out are bf16, else fp32 */
} Job;

typedef void (*Fork)(void (*)(void *), void *, unsigned, unsigned); /* OpenMP's GOMP_parallel */
typedef int (*Ask)(void);                                           /* its omp_get_thread_num */
typedef struct {
  const Job *job;
  Ask number;
  int64_t threads;
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

INLINE float widen(uint16_t h) {
  union { uint32_t u; float f; } v = {(uint32_t)h << 16};
  return v.f;
}

INLINE uint16_t narrow(float x) { /* to the nearest, ties to even */
  union { float f; uint32_t u; } v = {x};
  return x != x ? 0x7fc0 : (uint16_t)((v.u + 0x7fff + ((v.u >> 16) & 1)) >> 16);
}

INLINE vec read_bf16(const uint8_t *at) {
#if LANES == 16
  return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)at)), 16);
#elif LANES == 8
  return (vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)at)), 16);
#else
  uint16_t h[LANES];
  memcpy(h, at, sizeof h);
  return (vec)((bits){h[0], h[1], h[2], h[3]} << 16);
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

INLINE void write_bf16(uint16_t *at, vec x) {
#if defined(__AVX512BF16__)
  __m256bh h = _mm512_cvtneps_pbh((__m512)x);
  memcpy(at, &h, 32);
#else
  for (int i = 0; i < LANES; i++) at[i] = narrow(x[i]);
#endif
}

INLINE int64_t block_bytes(int kind) { return kind == BF16 ? 64 : kind == INT8 ? 32 : kind == Q8_0 ? 34 : 18; }

/* The 32 numbers of a block, before their scale, which is returned: 1 where it is not the block's own. */
INLINE vec read_block(int kind, const uint8_t *at, vec q[PARTS]) {
  if (kind == Q4_0) {
#if LANES == 16
    const __m512 table = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    __m512i i = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(at + 2)));
    q[0] = (vec)_mm512_permutexvar_ps(i, table); /* only the low four bits of an index count */
    q[1] = (vec)_mm512_permutexvar_ps(_mm512_srli_epi32(i, 4), table);
#elif LANES == 8
    const __m256i low = _mm256_set1_epi32(15), middle = _mm256_set1_epi32(8);
    for (int p = 0; p < 2; p++) {
      __m256i i = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(at + 2 + 8 * p)));
      q[p] = (vec)_mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_and_si256(i, low), middle));
      q[p + 2] = (vec)_mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(i, 4), middle));
    }
#else
    for (int p = 0; p < 4; p++) {
      const uint8_t *b = at + 2 + 4 * p;
      q[p] = (vec){b[0] & 15, b[1] & 15, b[2] & 15, b[3] & 15} - 8;
      q[p + 4] = (vec){b[0] >> 4, b[1] >> 4, b[2] >> 4, b[3] >> 4} - 8;
    }
#endif
    return read_scale(at);
  }
  for (int p = 0; p < PARTS; p++)
    q[p] = kind == BF16 ? read_bf16(at + 2 * LANES * p) : read_int8(at + (kind == Q8_0 ? 2 : 0) + LANES * p);
  return kind == Q8_0 ? read_scale(at) : (vec){0} + 1;
}

INLINE float add_up(vec x) {
#if LANES == 16
  return _mm512_reduce_add_ps((__m512)x);
#elif LANES == 8
  __m128 h = _mm_add_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
  h = _mm_add_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
#else
  return (x[0] + x[2]) + (x[1] + x[3]);
#endif
}

/* `deep` rows of weights from row i on, times `wide` rows of x from row m on, which lie block by block side by side. */
INLINE void multiply_tile(const Job *job, int kind, int deep, int wide, int64_t i, int64_t m) {
  vec sum[4][MOST] = {{{0}}};
  int64_t k = job->k, block = block_bytes(kind), size = k / 32 * block;
  const uint8_t *w = job->weight + i * size;
  const float *x32 = (const float *)job->x + m * k;
  const uint16_t *x16 = (const uint16_t *)job->x + m * k;
  for (int64_t b = 0; b < k / 32; b++, w += block, x32 += 32 * wide, x16 += 32 * wide) {
#pragma GCC unroll 4
    for (int r = 0; r < deep; r++) {
      __builtin_prefetch(w + (r + deep) * size); /* of the next rows: these are on their way */
#if defined(__AVX512BF16__)
      if (kind == BF16) {
        __m512bh q = (__m512bh)_mm512_loadu_si512(w + r * size);
#pragma GCC unroll 8
        for (int c = 0; c < wide; c++)
          sum[r][c] = (vec)_mm512_dpbf16_ps((__m512)sum[r][c], q, (__m512bh)_mm512_loadu_si512(x16 + 32 * c));
        continue;
      }
#endif
      vec q[PARTS];
      vec scale = read_block(kind, w + r * size, q);
#pragma GCC unroll 8
      for (int c = 0; c < wide; c++) {
        vec y = q[0] * *(const loose *)(x32 + 32 * c);
#pragma GCC unroll 8
        for (int p = 1; p < PARTS; p++) y += q[p] * *(const loose *)(x32 + 32 * c + p * LANES);
        sum[r][c] += kind == BF16 || kind == INT8 ? y : y * scale;
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < deep; r++)
#pragma GCC unroll 8
    for (int c = 0; c < wide; c++) {
      int64_t to = (m + c) * job->n + i + r;
      float y = add_up(sum[r][c]) * (kind == INT8 ? job->scale[i + r] : 1.0f);
      if (job->narrow)
        ((uint16_t *)job->out)[to] = narrow(y + (job->bias ? widen(((const uint16_t *)job->bias)[i + r]) : 0.0f));
      else
        ((float *)job->out)[to] = y + (job->bias ? ((const float *)job->bias)[i + r] : 0.0f);
    }
}

/* Four rows of weights, or the last few; as many at a time as there are registers for. */
INLINE void multiply_rows(const Job *job, int kind, int wide, int64_t i, int64_t m, int64_t left) {
  if (wide == 1 && left >= 4) {
    multiply_tile(job, kind, 4, 1, i, m);
    return;
  }
  int64_t end = i + (left < 4 ? left : 4);
  if (wide <= 4)
    for (; i + 1 < end; i += 2) multiply_tile(job, kind, 2, wide, i, m);
  for (; i < end; i++) multiply_tile(job, kind, 1, wide, i, m);
}

#define ROWS(kind, wide) case wide: multiply_rows(job, kind, wide, i, m, left); break;
#define KIND(kind) \
  static void multiply_##kind(const Job *job, int64_t wide, int64_t i, int64_t m, int64_t left) { \
    switch (wide) { ROWS(kind, 1) ROWS(kind, 2) ROWS(kind, 3) ROWS(kind, 4) \
                    ROWS(kind, 5) ROWS(kind, 6) ROWS(kind, 7) ROWS(kind, 8) } \
  }
KIND(BF16) KIND(INT8) KIND(Q8_0) KIND(Q4_0)
static void (*const MULTIPLY[])(const Job *, int64_t, int64_t, int64_t, int64_t) = {
  multiply_BF16, multiply_INT8, multiply_Q8_0, multiply_Q4_0};

static void multiply_part(const Job *job, int64_t from, int64_t to) {
  for (int64_t i = from; i < to; i += 4)
    for (int64_t m = 0; m < job->rows; m += MOST) /* the weights of these rows stay in the cache */
      MULTIPLY[job->kind](job, job->rows - m < MOST ? job->rows - m : MOST, i, m, to - i);
}

#define UNPACK(kind) case kind: scale *= read_block(kind, at, q); break;
static void unpack_part(const Job *job, int64_t from, int64_t to) {
  int64_t blocks = job->k / 32, block = block_bytes(job->kind);
  for (int64_t i = from; i < to; i++)
    for (int64_t b = 0; b < blocks; b++) {
      const uint8_t *at = job->weight + (i * blocks + b) * block;
      int64_t out = (i * blocks + b) * 32;
      vec scale = (vec){0} + (job->kind == INT8 ? job->scale[i] : 1.0f);
      vec q[PARTS] = {{0}};
      switch (job->kind) { UNPACK(BF16) UNPACK(INT8) UNPACK(Q8_0) UNPACK(Q4_0) }
      for (int p = 0; p < PARTS; p++)
        if (job->narrow) write_bf16((uint16_t *)job->out + out + LANES * p, q[p] * scale);
        else *(loose *)((float *)job->out + out + LANES * p) = q[p] * scale;
    }
}

static void work(void *given) {
  const Team *team = given;
  int64_t n = team->job->n, each = (n / 4 + team->threads) / team->threads * 4;
  int64_t from = (team->number ? team->number() : 0) * each, to = from + each < n ? from + each : n;
  if (from < to) (team->job->rows ? multiply_part : unpack_part)(team->job, from, to);
}

/* x for multiply_tile: of each group of rows the first block of all, then the second of all; fp32, or bf16 as it is. */
static void lay_out(const Job *job, void *to, int as_is) {
  int64_t k = job->k;
  for (int64_t m = 0; m < job->rows; m += MOST) {
    int64_t wide = job->rows - m < MOST ? job->rows - m : MOST;
    for (int64_t c = 0; c < wide; c++)
      for (int64_t b = 0; b < k / 32; b++) {
        const uint8_t *from = (const uint8_t *)job->x + ((m + c) * k + 32 * b) * (job->narrow ? 2 : 4);
        int64_t at = m * k + (b * wide + c) * 32;
        if (as_is) memcpy((uint16_t *)to + at, from, 64);
        else if (!job->narrow) memcpy((float *)to + at, from, 128);
        else for (int p = 0; p < PARTS; p++) *(loose *)((float *)to + at + LANES * p) = read_bf16(from + 2 * LANES * p);
      }
  }
}

/* out [rows, n] = x [rows, k] times the matrix, plus bias; 0 where it was done. No rows: out [n, k] is the matrix. */
int qkv_run(const Job *given, Fork fork, Ask number, int64_t threads) {
  Job job = *given;
  Team team = {&job, threads > 1 ? number : 0, threads};
  int as_is = 0;
#if defined(__AVX512BF16__)
  as_is = job.kind == BF16;
#endif
  void *laid = job.rows ? malloc((size_t)(job.rows * job.k) * sizeof(float)) : 0;
  if (job.rows && !laid) return 1;
  if (laid) lay_out(&job, laid, as_is), job.x = laid;
  if (threads > 1) fork(work, &team, (unsigned)threads, 0);
  else work(&team);
  free(laid);
  return 0;
}
