/* A decoding step of a whole block: norm, queries, keys and values, rotation, attention, sum, norm, feed-forward, sum.
   The parts are those of row_products.c and row_ops.c, in the same order, so that a row has the same bits by either way;
   threads are called once and meet between the parts. */

#include "row_products.c"
#include "row_ops.c"

typedef void (*Meet)(void); /* OpenMP's GOMP_barrier */

typedef struct {
  const void *x;        /* rows of `width` numbers, as `out` */
  void *out, *room;     /* room: `qkv_block_room` bytes for what stands between */
  void *keys, *values;  /* where new ones are stored: row r from number k_to[r] on, groups as far apart as `attend` says */
  const int64_t *k_to, *v_to;
  Norm norms[4];        /* weights: before attention and before the network; after them, or none */
  Norm heads[2];        /* of each head of a query and of a key, or none */
  Job jobs[7];          /* weights: of q k v out, up or gate, up where there is a gate, down */
  Turn turn;            /* angles of queries and keys; no cos: none */
  Attend attend;
  Gate gate;
  int64_t rows, width, room_of_x; /* room_of_x: bytes of the largest x that is laid out */
  int32_t low;
} Block;

static void *take(uint8_t **room, int64_t bytes) { /* the next part of the room */
  void *found = *room;
  *room += (bytes + 63) / 64 * 64;
  return found;
}

/* Every part reads what the one before wrote. Returns where the room ends. */
static uint8_t *join_parts(Block *b) {
  int64_t rows = b->rows, of = b->low ? 2 : 4, most = 0, gated = b->jobs[5].n > 0;
  int64_t all = b->jobs[0].n + b->jobs[1].n + b->jobs[2].n, both = b->jobs[4].n + b->jobs[5].n, ffn = b->jobs[4].n;
  for (int n = 0; n < 7; n++) {
    Job *job = b->jobs + n;
    job->rows = rows, job->narrow = b->low;
    job->k = n == 3 ? b->attend.heads * b->attend.value_size : n == 6 ? ffn : b->width;
    job->step = n < 3 ? all : n == 4 || n == 5 ? both : b->width;
    most = job->k > most ? job->k : most;
  }
  b->room_of_x = ((rows + MOST - 1) / MOST * MOST * most * 4 + 127) / 64 * 64;
  uint8_t *room = (uint8_t *)(((uintptr_t)b->room + 63) & ~(uintptr_t)63);
  b->room = room;
  take(&room, 3 * b->room_of_x);
  uint8_t *normed = take(&room, rows * b->width * of), *three = take(&room, rows * all * of);
  uint8_t *mixed = take(&room, rows * b->jobs[3].k * of), *more = take(&room, rows * b->width * of);
  uint8_t *sum = take(&room, rows * b->width * of), *two = take(&room, rows * both * of);
  uint8_t *act = take(&room, rows * ffn * of);
  for (int n = 0; n < 4; n++) {
    Norm *norm = b->norms + n;
    norm->x = n == 0 ? b->x : n == 1 ? sum : more, norm->out = n < 2 ? normed : more;
    norm->rows = rows, norm->n = b->width, norm->low = b->low;
  }
  for (int n = 0; n < 7; n++) b->jobs[n].x = n == 3 ? mixed : n == 6 ? act : normed;
  b->jobs[0].out = three, b->jobs[1].out = three + b->jobs[0].n * of;
  b->jobs[2].out = three + (b->jobs[0].n + b->jobs[1].n) * of;
  b->jobs[3].out = b->jobs[6].out = more, b->jobs[4].out = two, b->jobs[5].out = two + ffn * of;
  b->turn.x = three, b->turn.rows = rows, b->turn.step = all, b->turn.low = b->low, b->turn.size = b->attend.size;
  b->turn.heads = b->attend.heads + b->attend.groups; /* keys stand behind queries */
  b->attend.q = three, b->attend.out = mixed, b->attend.rows = rows, b->attend.q_step = all, b->attend.low = b->low;
  b->attend.k = b->keys, b->attend.v = b->values;
  b->gate.gate = two, b->gate.up = gated ? two + ffn * of : 0, b->gate.out = act;
  b->gate.rows = rows, b->gate.n = ffn, b->gate.step = both, b->gate.low = b->low;
  return room;
}

typedef struct {
  Block *block;
  Ask number;
  Meet meet;
  int32_t failed;
} Crew;

static void add_columns(const Block *b, const void *x, const void *more, void *to, int64_t number, int64_t threads) {
  int64_t all = b->rows * b->width / LANES;
  for (int64_t i = all * number / threads; i < all * (number + 1) / threads; i++)
    write(to, i * LANES, b->low, read(x, i * LANES, b->low) + read(more, i * LANES, b->low));
}

/* x of some jobs laid out, once for all neighbours of one kind. */
static void lay_out_each(Job *jobs, int64_t count, uint8_t *room, int64_t each) {
  for (int64_t n = 0; n < count; n++) {
    if (n && jobs[n].kind == jobs[n - 1].kind) { jobs[n].x = jobs[n - 1].x; continue; }
    lay_out(jobs + n, jobs[n].narrow && IN_PAIRS(jobs[n].kind), room + n * each);
    jobs[n].x = room + n * each;
  }
}

static void store_row(const Block *b, int64_t r) {
  const Attend *at = &b->attend;
  int64_t of = b->low ? 2 : 4;
  const uint8_t *k = (const uint8_t *)b->jobs[1].out + r * b->jobs[1].step * of;
  const uint8_t *v = (const uint8_t *)b->jobs[2].out + r * b->jobs[2].step * of;
  for (int64_t g = 0; g < at->groups; g++) {
    memcpy((uint8_t *)b->keys + (b->k_to[r] + g * at->k_group) * of, k + g * at->size * of, (size_t)(at->size * of));
    memcpy((uint8_t *)b->values + (b->v_to[r] + g * at->v_group) * of, v + g * at->value_size * of,
           (size_t)(at->value_size * of));
  }
}

static void norm_heads(const Block *b, int64_t r) {
  for (int n = 0; n < 2; n++) {
    Norm norm = b->heads[n];
    norm.x = norm.out = (uint8_t *)b->jobs[n].out + r * b->jobs[n].step * (b->low ? 2 : 4);
    norm.rows = n ? b->attend.groups : b->attend.heads, norm.n = b->attend.size, norm.low = b->low;
    if (norm.weight) norm_rows(&norm, 0, norm.rows);
  }
}

static void run_block(void *given) {
  Crew *crew = given;
  Block *b = crew->block;
  int64_t t = crew->number ? crew->number() : 0, of = count_threads(crew->number);
  int64_t first = b->rows * t / of, end = b->rows * (t + 1) / of;
#define MEET if (crew->meet) crew->meet()
  norm_rows(b->norms, first, end);
  MEET;
  if (t == 0) lay_out_each(b->jobs, 3, b->room, b->room_of_x);
  MEET;
  multiply_share(b->jobs, 3, t, of);
  MEET;
  for (int64_t r = first; r < end; r++) norm_heads(b, r);
  if (b->turn.cos) rotate_rows(&b->turn, first, end);
  for (int64_t r = first; r < end; r++) store_row(b, r);
  MEET;
  if (attend_share(&b->attend, t, of)) crew->failed = 1;
  MEET;
  if (t == 0) lay_out_each(b->jobs + 3, 1, b->room, b->room_of_x);
  MEET;
  multiply_share(b->jobs + 3, 1, t, of);
  MEET;
  if (b->norms[2].weight) {
    norm_rows(b->norms + 2, first, end);
    MEET;
  }
  add_columns(b, b->x, b->jobs[3].out, (void *)b->norms[1].x, t, of);
  MEET;
  norm_rows(b->norms + 1, first, end);
  MEET;
  int64_t two = b->gate.up ? 2 : 1;
  if (t == 0) lay_out_each(b->jobs + 4, two, b->room, b->room_of_x);
  MEET;
  multiply_share(b->jobs + 4, two, t, of);
  MEET;
  int64_t parts = b->gate.n / LANES;
  for (int64_t r = 0; r < b->rows; r++)
    gate_columns(&b->gate, r, parts * t / of * LANES, parts * (t + 1) / of * LANES);
  MEET;
  if (t == 0) lay_out_each(b->jobs + 6, 1, b->room, b->room_of_x);
  MEET;
  multiply_share(b->jobs + 6, 1, t, of);
  MEET;
  if (b->norms[3].weight) {
    norm_rows(b->norms + 3, first, end);
    MEET;
  }
  add_columns(b, b->norms[1].x, b->jobs[6].out, b->out, t, of);
}

void qkv_open(Ask size) { team_size = size; }

int64_t qkv_block_room(Block *block) {
  block->room = 0;
  return join_parts(block) - (uint8_t *)0 + 64;
}

/* out = block(x); 0 where it was done. */
int qkv_block(Block *block, Fork fork, Ask number, Meet meet, int64_t threads) {
  join_parts(block);
  Crew crew = {block, threads > 1 ? number : 0, threads > 1 ? meet : 0, 0};
  if (threads > 1) fork(run_block, &crew, (unsigned)threads, 0);
  else run_block(&crew);
  return crew.failed;
}
