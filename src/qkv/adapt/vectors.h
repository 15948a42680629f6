/* What the kernels share: vectors of fp32 as wide as this instruction set has them, numbers of 16 bits in and out of
   them, the exponential, and how work is shared out. Vectors are the compiler's own; intrinsics stand where it does not
   find the instruction. */

#pragma once
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
#define PARTS (32 / LANES) /* vectors of a block of 32 numbers */
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias)); /* anywhere in memory */
typedef uint32_t bits __attribute__((vector_size(4 * LANES)));
typedef int32_t whole __attribute__((vector_size(4 * LANES)));

typedef void (*Fork)(void (*)(void *), void *, unsigned, unsigned); /* OpenMP's GOMP_parallel */
typedef int (*Ask)(void);                                           /* its omp_get_thread_num */

static Ask team_size; /* its omp_get_num_threads: fewer threads may come than were called */

INLINE int64_t count_threads(Ask number) { return number ? team_size() : 1; } /* of those that do this work together */

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

INLINE void write_bf16(uint16_t *at, vec x) {
#if defined(__AVX512BF16__)
  __m256bh h = _mm512_cvtneps_pbh((__m512)x);
  memcpy(at, &h, 32);
#else
  for (int i = 0; i < LANES; i++) at[i] = narrow(x[i]);
#endif
}

/* A vector from number i on, of numbers that are bf16 where `low`, else fp32; and one number. */
INLINE vec read(const void *from, int64_t i, int low) {
  return low ? read_bf16((const uint8_t *)from + 2 * i) : (vec)*(const loose *)((const float *)from + i);
}

INLINE vec read_rest(const void *from, int64_t i, int64_t count, int low) { /* fewer numbers than a vector has */
  vec x = {0};
  for (int64_t j = 0; j < count; j++) x[j] = low ? widen(((const uint16_t *)from)[i + j]) : ((const float *)from)[i + j];
  return x;
}

INLINE void write(void *to, int64_t i, int low, vec x) {
  if (low) write_bf16((uint16_t *)to + i, x);
  else *(loose *)((float *)to + i) = x;
}

INLINE float read_one(const void *from, int64_t i, int low) {
  return low ? widen(((const uint16_t *)from)[i]) : ((const float *)from)[i];
}

INLINE void write_one(void *to, int64_t i, int low, float x) {
  if (low) ((uint16_t *)to)[i] = narrow(x);
  else ((float *)to)[i] = x;
}

#if LANES >= 8
INLINE float add_eight(__m256 x) {
  __m128 h = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  h = _mm_add_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}
#endif

INLINE float add_up(vec x) {
#if LANES == 16
  return _mm512_reduce_add_ps((__m512)x);
#elif LANES == 8
  return add_eight((__m256)x);
#else
  return (x[0] + x[2]) + (x[1] + x[3]);
#endif
}

INLINE vec greater_of(vec a, vec b) { /* b where one of them is no number */
#if LANES == 16
  return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif LANES == 8
  return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
  vec c;
  for (int i = 0; i < LANES; i++) c[i] = a[i] > b[i] ? a[i] : b[i];
  return c;
#endif
}

INLINE vec lesser_of(vec a, vec b) { /* as well */
#if LANES == 16
  return (vec)_mm512_min_ps((__m512)a, (__m512)b);
#elif LANES == 8
  return (vec)_mm256_min_ps((__m256)a, (__m256)b);
#else
  vec c;
  for (int i = 0; i < LANES; i++) c[i] = a[i] < b[i] ? a[i] : b[i];
  return c;
#endif
}

INLINE float most_of(vec x) {
#if LANES == 16
  return _mm512_reduce_max_ps((__m512)x);
#else
  float most = x[0];
  for (int i = 1; i < LANES; i++) most = x[i] > most ? x[i] : most;
  return most;
#endif
}

/* x plus the first `count` numbers, or as many as there are lanes, at `more`, where there are any; then -infinity. */
INLINE vec add_first(vec x, const float *more, int64_t count) {
#if LANES == 16
  __mmask16 some = count >= 16 ? 0xffff : count > 0 ? (__mmask16)((1 << count) - 1) : 0;
  if (more) x += (vec)_mm512_maskz_loadu_ps(some, more);
  return (vec)_mm512_mask_mov_ps(_mm512_set1_ps(-__builtin_inff()), some, (__m512)x);
#else
  if (count >= LANES) return more ? x + *(const loose *)more : x;
  for (int i = 0; i < LANES; i++)
    if (i >= count) x[i] = -__builtin_inff();
    else if (more) x[i] += more[i];
  return x;
#endif
}

INLINE unsigned lanes(whole where) { /* a bit for each number, of which all are 0 or -1 */
#if LANES == 16
  return _mm512_movepi32_mask((__m512i)where);
#elif LANES == 8
  return (unsigned)_mm256_movemask_ps((__m256)where);
#else
  return (where[0] & 1) | (where[1] & 2) | (where[2] & 4) | (where[3] & 8);
#endif
}

INLINE vec choose(whole where, vec a, vec b) { return (vec)(((whole)a & where) | ((whole)b & ~where)); }

/* e^x for x within the exponents of fp32, to about its last bit: 2^n times a polynomial on half of ln 2 each way. */
INLINE vec exponential(vec x) {
  const vec none = {0};
  x = greater_of(none - 87.0f, lesser_of(none + 88.0f, x));
  vec shift = none + 0x1.8p23f; /* adding it rounds to a whole number */
  vec n = (x * 1.44269504f + shift) - shift;
  vec r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  vec y = none + 1.9875691e-4f;
  y = y * r + 1.3981999e-3f, y = y * r + 8.3334519e-3f, y = y * r + 4.1665796e-2f;
  y = y * r + 1.6666665e-1f, y = y * r + 5.0000001e-1f, y = y * r * r + r + 1.0f;
  return y * (vec)((__builtin_convertvector(n, whole) + 127) << 23);
}
