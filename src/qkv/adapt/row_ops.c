/* What stands between the products of a decoding step: norm, rotation, gate, and the attention of one query a row.
   Each row has the same result in any company. Numbers are bf16 where `low`, else fp32; all sums are in fp32. */

#include "vectors.h"

/* Rows that threads share out: part(job, from, to) does those from `from` on, before `to`. */
typedef struct {
  void (*part)(const void *, int64_t, int64_t);
  const void *job;
  Ask number;
  int64_t rows, threads;
} Shares;

static void take_share(void *given) {
  const Shares *all = given;
  int64_t number = all->number ? all->number() : 0, threads = count_threads(all->number);
  all->part(all->job, all->rows * number / threads, all->rows * (number + 1) / threads);
}

static void share_rows(Shares all, Fork fork) {
  if (all.threads > 1) fork(take_share, &all, (unsigned)all.threads, 0);
  else take_share(&all);
}

/* out [rows, n] = x / sqrt(mean(x^2) + eps) * (weight + offset) + bias, n a multiple of 16; of a row whose mean is taken
   off first where `centred`. It may be written over x. */
typedef struct {
  const void *x, *weight, *bias; /* bias: or none */
  void *out;
  int64_t rows, n;
  float eps, offset;
  int32_t centred, low;
} Norm;

static void norm_rows(const void *given, int64_t from, int64_t to) {
  const Norm *job = given;
  for (int64_t r = from; r < to; r++) {
    vec sum = {0}, all = {0};
    if (job->centred)
      for (int64_t i = 0; i < job->n; i += LANES) all += read(job->x, r * job->n + i, job->low);
    float off = job->centred ? add_up(all) / (float)job->n : 0.0f;
    for (int64_t i = 0; i < job->n; i += LANES) {
      vec x = read(job->x, r * job->n + i, job->low) - off;
      sum += x * x;
    }
    float mean = add_up(sum) / (float)job->n + job->eps;
    float by = 1.0f / __builtin_sqrtf(mean);
    for (int64_t i = 0; i < job->n; i += LANES) {
      vec x = (read(job->x, r * job->n + i, job->low) - off) * by;
      x *= read(job->weight, i, job->low) + job->offset;
      write(job->out, r * job->n + i, job->low, job->bias ? x + read(job->bias, i, job->low) : x);
    }
  }
}

void qkv_norm(const Norm *job, Fork fork, Ask number, int64_t threads) {
  share_rows((Shares){norm_rows, job, threads > 1 ? number : 0, job->rows, threads}, fork);
}

/* Of each head [rows, heads, size] the first 2 half numbers turned in place: in two halves, or in neighbouring pairs.
   step: numbers from one row to the next; cos, sin [angles, half] in fp32, again and again, bf16 first where `low`. */
typedef struct {
  void *x;
  const float *cos, *sin;
  int64_t rows, heads, size, half, step, angles;
  int32_t neighbours, low;
} Turn;

/* A vector of angles' numbers as they are multiplied. */
INLINE vec read_angles(const float *from, int low) {
  uint16_t rounded[LANES];
  if (!low) return *(const loose *)from;
  write_bf16(rounded, *(const loose *)from);
  return read_bf16((const uint8_t *)rounded);
}

/* Numbers of a head that are turned in two halves, a vector at a time; how many of each half. */
INLINE int64_t rotate_halves(const Turn *job, int64_t r, int64_t at) {
  const float *cos = job->cos + r % job->angles * job->half, *sin = job->sin + r % job->angles * job->half;
  int64_t i = 0;
  for (; !job->neighbours && i + LANES <= job->half; i += LANES) {
    vec c = read_angles(cos + i, job->low), s = read_angles(sin + i, job->low);
    vec a = read(job->x, at + i, job->low), b = read(job->x, at + job->half + i, job->low);
    write(job->x, at + i, job->low, a * c - b * s);
    write(job->x, at + job->half + i, job->low, b * c + a * s);
  }
  return i;
}

static void rotate_rows(const void *given, int64_t from, int64_t to) {
  const Turn *job = given;
  for (int64_t r = from; r < to; r++)
    for (int64_t h = 0; h < job->heads; h++)
      for (int64_t i = rotate_halves(job, r, r * job->step + h * job->size); i < job->half; i++) {
        int64_t at = r * job->step + h * job->size, one = at + (job->neighbours ? 2 * i : i);
        int64_t two = job->neighbours ? one + 1 : one + job->half;
        float c = job->cos[r % job->angles * job->half + i], s = job->sin[r % job->angles * job->half + i];
        if (job->low) c = widen(narrow(c)), s = widen(narrow(s));
        float a = read_one(job->x, one, job->low), b = read_one(job->x, two, job->low);
        write_one(job->x, one, job->low, a * c - b * s);
        write_one(job->x, two, job->low, b * c + a * s);
      }
}

void qkv_rotate(const Turn *job, Fork fork, Ask number, int64_t threads) {
  share_rows((Shares){rotate_rows, job, threads > 1 ? number : 0, job->rows, threads}, fork);
}

enum { RELU, SILU, GELU_TANH };

/* out [rows, n] = act(gate) * up, or act(gate) where there is no up; rows of gate and up are `step` numbers apart. */
typedef struct {
  const void *gate, *up;
  void *out;
  int64_t rows, n, step;
  int32_t kind, low;
} Gate;

static void gate_columns(const Gate *job, int64_t r, int64_t from, int64_t to) {
  for (int64_t i = from; i < to; i += LANES) {
    vec x = read(job->gate, r * job->step + i, job->low), y;
    if (job->kind == RELU) y = choose(x > 0.0f, x, x * 0.0f);
    else {
      vec by = job->kind == SILU ? x : (x + x * x * x * 0.044715f) * 1.5957691f; /* 2 sqrt(2 / pi) */
      y = x / (exponential(-by) + 1.0f);
    }
    if (job->up) y *= read(job->up, r * job->step + i, job->low);
    write(job->out, r * job->n + i, job->low, y);
  }
}

static void gate_rows(const void *given, int64_t from, int64_t to) {
  const Gate *job = given;
  for (int64_t r = from; r < to; r++) gate_columns(job, r, 0, job->n);
}

void qkv_gate(const Gate *job, Fork fork, Ask number, int64_t threads) {
  share_rows((Shares){gate_rows, job, threads > 1 ? number : 0, job->rows, threads}, fork);
}

/* One query of each row and head over the keys of its group: softmax(cap(q k * scale) + bias) v.
   Position s of row r lies at number starts[r] + s k_step of k where slots[r] is 0, else at slots[r][s] k_step. */
typedef struct {
  const void *q, *k, *v; /* q [rows, heads, size], its rows q_step numbers apart */
  void *out;             /* rows, heads, value_size */
  const float *bias;     /* of position s: bias[r bias_row + h bias_head + s], or none */
  const int64_t *k_starts, *v_starts, *lengths;
  const int64_t *const *slots;
  int64_t rows, heads, groups, size, value_size, q_step, k_step, v_step, k_group, v_group, bias_row, bias_head;
  float scale, cap;
  int32_t low;
} Attend;

typedef struct {
  const Attend *job;
  Ask number;
  int32_t failed;
} Seats;

#define HEADS 4 /* that share one reading of a key */

INLINE int64_t place(const Attend *job, int64_t r, int64_t s, int64_t start, int64_t step) {
  const int64_t *slots = job->slots ? job->slots[r] : 0;
  return slots ? slots[s] * step : start + s * step;
}

#define KEYS 16  /* whose scores are added up side by side */
#define AHEAD 12 /* positions by which values are fetched before they are read: each lies far from the next */

INLINE void fetch(const void *from, int64_t i, int64_t count, int low) { /* numbers from i on, into the cache */
  for (int64_t n = 0; n < count; n += low ? 32 : 16) __builtin_prefetch((const uint8_t *)from + (i + n) * (low ? 2 : 4));
}

/* The products of a query and of each of some keys, to be added up. */
INLINE void multiply_keys(const Attend *job, const int64_t k[KEYS], int64_t q, int low, vec sum[KEYS]) {
  int64_t i = 0, rest = job->size % LANES;
  for (int j = 0; j < KEYS; j++) sum[j] = (vec){0};
#if defined(__AVX512BF16__)
  for (; low && i + 32 <= job->size; i += 32) {
    __m512bh y = (__m512bh)_mm512_loadu_si512((const uint16_t *)job->q + q + i);
#pragma GCC unroll 16
    for (int j = 0; j < KEYS; j++)
      sum[j] = (vec)_mm512_dpbf16_ps((__m512)sum[j], (__m512bh)_mm512_loadu_si512((const uint16_t *)job->k + k[j] + i), y);
  }
#endif
  for (; i + LANES <= job->size; i += LANES) {
    vec y = read(job->q, q + i, low);
#pragma GCC unroll 16
    for (int j = 0; j < KEYS; j++) sum[j] += read(job->k, k[j] + i, low) * y;
  }
  for (int j = 0; j < KEYS && rest; j++)
    sum[j] += read_rest(job->k, k[j] + i, rest, low) * read_rest(job->q, q + i, rest, low);
}

INLINE void add_up_each(const vec x[KEYS], float to[KEYS]) {
#if LANES == 16
  __m512 a[8], b[4];
  for (int i = 0; i < 8; i++) {
    __m512 one = (__m512)x[2 * i], two = (__m512)x[2 * i + 1];
    a[i] = _mm512_add_ps(_mm512_unpacklo_ps(one, two), _mm512_unpackhi_ps(one, two));
  }
  for (int i = 0; i < 4; i++) {
    __m512d one = _mm512_castps_pd(a[2 * i]), two = _mm512_castps_pd(a[2 * i + 1]);
    b[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(one, two)), _mm512_castpd_ps(_mm512_unpackhi_pd(one, two)));
  }
#define FOLD(x, y) _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd))
  __m512 low = FOLD(b[0], b[1]), high = FOLD(b[2], b[3]);
  _mm512_storeu_ps(to, FOLD(low, high));
#else
  for (int j = 0; j < KEYS; j++) to[j] = add_up(x[j]);
#endif
}

INLINE int64_t room_for(int64_t length) { return (length + KEYS - 1) / KEYS * KEYS; } /* scores of a head */

/* Scores of `wide` heads from h on: wide x room_for(length), those beyond the length -infinity. */
INLINE void score(const Attend *job, int64_t r, int64_t h, int wide, int low, float *to) {
  int64_t length = job->lengths[r], group = h / (job->heads / job->groups) * job->k_group;
  for (int64_t s = 0; s < length; s += KEYS) {
    int64_t at[KEYS], count = length - s < KEYS ? length - s : KEYS;
    for (int64_t j = 0; j < KEYS; j++)
      at[j] = place(job, r, j < count ? s + j : s, job->k_starts[r], job->k_step) + group;
    for (int64_t j = s + KEYS; j < s + 2 * KEYS && j < length; j++)
      fetch(job->k, place(job, r, j, job->k_starts[r], job->k_step) + group, job->size, low);
    for (int c = 0; c < wide; c++) {
      int64_t q = r * job->q_step + (h + c) * job->size;
      float *sums = to + c * room_for(length) + s;
      vec part[KEYS];
      multiply_keys(job, at, q, low, part);
      add_up_each(part, sums);
      const float *bias = job->bias ? job->bias + r * job->bias_row + (h + c) * job->bias_head + s : 0;
      for (int j = 0; j < KEYS; j += LANES) {
        vec y = *(loose *)(sums + j) * job->scale;
        if (job->cap != 0.0f) y = job->cap * (1.0f - 2.0f / (exponential(y * (2.0f / job->cap)) + 1.0f));
        *(loose *)(sums + j) = add_first(y, bias ? bias + j : 0, count - j);
      }
    }
  }
}

/* Scores to weights whose sum is returned. */
INLINE float weigh(float *score, int64_t length) {
  vec most = *(loose *)score, sum = {0};
  for (int64_t s = LANES; s < length; s += LANES) most = greater_of(*(loose *)(score + s), most);
  float top = most_of(most);
  for (int64_t s = 0; s < length; s += LANES) {
    vec y = exponential(*(loose *)(score + s) - top); /* next to nothing beyond the length */
    *(loose *)(score + s) = y;
    sum += y;
  }
  return add_up(sum);
}

/* The weighted sum of `parts` vectors of values from i on, for `wide` heads. */
INLINE void mix_part(const Attend *job, int64_t r, int64_t h, int64_t i, int wide, int parts, int low, const float *weight,
                     const float *sums) {
  int64_t length = job->lengths[r], group = h / (job->heads / job->groups) * job->v_group, room = room_for(length);
  vec sum[HEADS][4] = {{{0}}};
  for (int64_t s = 0; s < length; s++) {
    int64_t at = place(job, r, s, job->v_starts[r], job->v_step) + group + i, next = s + AHEAD;
    if (next < length) fetch(job->v, place(job, r, next, job->v_starts[r], job->v_step) + group + i, parts * LANES, low);
    for (int p = 0; p < parts; p++) {
      vec v = read(job->v, at + p * LANES, low);
      for (int c = 0; c < wide; c++) sum[c][p] += v * weight[c * room + s];
    }
  }
  for (int c = 0; c < wide; c++)
    for (int p = 0; p < parts; p++)
      write(job->out, (r * job->heads + h + c) * job->value_size + i + p * LANES, low, sum[c][p] * (1.0f / sums[c]));
}

/* The same of the last few numbers, which are no whole vector. */
INLINE void mix_rest(const Attend *job, int64_t r, int64_t h, int64_t i, int wide, int low, const float *weight,
                     const float *sums) {
  int64_t length = job->lengths[r], group = h / (job->heads / job->groups) * job->v_group, count = job->value_size - i;
  int64_t room = room_for(length);
  vec sum[HEADS] = {{0}};
  for (int64_t s = 0; s < length; s++) {
    vec v = read_rest(job->v, place(job, r, s, job->v_starts[r], job->v_step) + group + i, count, low);
    for (int c = 0; c < wide; c++) sum[c] += v * weight[c * room + s];
  }
  for (int c = 0; c < wide; c++)
    for (int64_t j = 0; j < count; j++)
      write_one(job->out, (r * job->heads + h + c) * job->value_size + i + j, low, sum[c][j] / sums[c]);
}

INLINE void mix(const Attend *job, int64_t r, int64_t h, int wide, int low, const float *weight, const float *sums) {
  int64_t i = 0;
  for (; i + 4 * LANES <= job->value_size; i += 4 * LANES) mix_part(job, r, h, i, wide, 4, low, weight, sums);
  for (; i + 2 * LANES <= job->value_size; i += 2 * LANES) mix_part(job, r, h, i, wide, 2, low, weight, sums);
  for (; i + LANES <= job->value_size; i += LANES) mix_part(job, r, h, i, wide, 1, low, weight, sums);
  if (i < job->value_size) mix_rest(job, r, h, i, wide, low, weight, sums);
}

#define HEADS_OF(wide, low) { \
    score(job, r, h, wide, low, room); \
    for (int c = 0; c < wide; c++) sums[c] = weigh(room + c * room_for(job->lengths[r]), job->lengths[r]); \
    mix(job, r, h, wide, low, room, sums); }

static void attend_heads(const Attend *job, int64_t r, int64_t h, int64_t wide, float *room) {
  float sums[HEADS];
  if (job->low) switch (wide) { case 4: HEADS_OF(4, 1) break; case 3: HEADS_OF(3, 1) break;
                                case 2: HEADS_OF(2, 1) break; default: HEADS_OF(1, 1) }
  else switch (wide) { case 4: HEADS_OF(4, 0) break; case 3: HEADS_OF(3, 0) break;
                       case 2: HEADS_OF(2, 0) break; default: HEADS_OF(1, 0) }
}

/* What thread `number` of `threads` attends to; 0 where it was done. */
static int attend_share(const Attend *job, int64_t number, int64_t threads) {
  int64_t most = 0, each = job->heads / job->groups, share = each < HEADS ? each : HEADS;
  int64_t parts = (each + share - 1) / share, all = job->rows * job->groups * parts;
  for (int64_t r = 0; r < job->rows; r++) most = job->lengths[r] > most ? job->lengths[r] : most;
  float *room = malloc((size_t)(room_for(most) * HEADS) * sizeof(float));
  if (!room) return 1;
  for (int64_t t = all * number / threads; t < all * (number + 1) / threads; t++) {
    int64_t r = t / (job->groups * parts), g = t / parts % job->groups, from = t % parts * share;
    attend_heads(job, r, g * each + from, each - from < share ? each - from : share, room);
  }
  free(room);
  return 0;
}

static void attend_part(void *given) {
  Seats *team = given;
  if (attend_share(team->job, team->number ? team->number() : 0, count_threads(team->number))) team->failed = 1;
}

int qkv_attend(const Attend *job, Fork fork, Ask number, int64_t threads) {
  Seats team = {job, threads > 1 ? number : 0, 0};
  if (threads > 1) fork(attend_part, &team, (unsigned)threads, 0);
  else attend_part(&team);
  return team.failed;
}

/* Of each row of x [rows, n] the `count` greatest numbers, greatest first and of equal ones the first, but none whose
   index is barred; then two numbers, the greatest of all and the sum of all e^(x - it). Where there are not so many
   above -infinity, the last ones are that, and have no index. */
typedef struct {
  const void *x;
  const int64_t *barred;
  int64_t *ids; /* rows, count */
  float *out;   /* rows, count + 2 */
  int64_t rows, n, step, count, bars;
  int32_t low;
} Select;

static void put_in(const Select *job, float *best, int64_t *ids, float x, int64_t id) {
  int64_t j = job->count - 1;
  for (int64_t b = 0; b < job->bars; b++)
    if (job->barred[b] == id) return;
  for (; j > 0 && best[j - 1] < x; j--) best[j] = best[j - 1], ids[j] = ids[j - 1];
  best[j] = x, ids[j] = id;
}

#define LINES 4 /* vectors that are looked at together */

/* The greatest number, and in `least` one that as many are not below as must be looked at, or -infinity: it is the greatest
   of some of them, and so many others have a greatest that is not below. */
INLINE float find_top(const Select *job, const void *x, float *least, int low) {
  int64_t i = 0, wanted = job->count + job->bars;
  vec most[LINES];
  for (int p = 0; p < LINES; p++) most[p] = (vec){0} - __builtin_inff();
  for (; i + LINES * LANES <= job->n; i += LINES * LANES)
    for (int p = 0; p < LINES; p++) most[p] = greater_of(read(x, i + p * LANES, low), most[p]);
  float top = -__builtin_inff();
  *least = top;
  for (int j = 0; j < LANES; j++) {
    int64_t found = 0;
    for (int p = 0; p < LINES; p++) found += __builtin_popcount(lanes(most[p] >= most[0][j]));
    if (found >= wanted && most[0][j] > *least) *least = most[0][j];
  }
  for (int p = 1; p < LINES; p++) most[0] = greater_of(most[p], most[0]);
  top = most_of(most[0]);
  for (; i < job->n; i++) top = read_one(x, i, low) > top ? read_one(x, i, low) : top;
  return top;
}

#define CHUNK 4096 /* numbers that are added up in fp32 */

/* The sum of all e^(x - top), while the best numbers among those that are not below `least` are put in. */
INLINE float add_exponentials(const Select *job, const void *x, float top, float least, float *best, int64_t *ids, int low) {
  double total = 0.0;
  int64_t i = 0, last = job->count - 1;
  while (i + LINES * LANES <= job->n) {
    vec sums[LINES] = {{0}};
    for (int64_t end = i + CHUNK; i + LINES * LANES <= job->n && i < end; i += LINES * LANES)
      for (int p = 0; p < LINES; p++) {
        vec y = read(x, i + p * LANES, low);
        sums[p] += exponential(y - top);
        for (unsigned some = lanes(y >= least); some; some &= some - 1) {
          int64_t at = i + p * LANES + __builtin_ctz(some);
          if (read_one(x, at, low) > best[last]) put_in(job, best, ids, read_one(x, at, low), at);
        }
      }
    total += add_up((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }
  for (; i < job->n; i++) {
    float one = read_one(x, i, low);
    total += exponential((vec){0} + (one - top))[0];
    if (one > best[last]) put_in(job, best, ids, one, i);
  }
  return (float)total;
}

#define SELECT(low) { \
    out[job->count] = find_top(job, x, &least, low); \
    out[job->count + 1] = add_exponentials(job, x, out[job->count], least, out, ids, low); }

static void select_rows(const void *given, int64_t from, int64_t to) {
  const Select *job = given;
  for (int64_t r = from; r < to; r++) {
    const void *x = (const uint8_t *)job->x + r * job->step * (job->low ? 2 : 4);
    int64_t *ids = job->ids + r * job->count;
    float *out = job->out + r * (job->count + 2);
    for (int64_t j = 0; j < job->count; j++) out[j] = -__builtin_inff(), ids[j] = 0;
    float least;
    if (job->low) SELECT(1) else SELECT(0)
  }
}

void qkv_select(const Select *job, Fork fork, Ask number, int64_t threads) {
  share_rows((Shares){select_rows, job, threads > 1 ? number : 0, job->rows, threads}, fork);
}
