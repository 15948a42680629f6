/* A decoding step of whole blocks: attention, attention to a source where there is one, feed-forward, each with its norms
   and added to the states. The parts are those of row_products.c and row_ops.c, in the same order, so that a row has the
   same bits by either way; threads are started once for all blocks and wait for one another at a barrier between the
   parts. */

#include "row_products.c"
#include "row_ops.c"
#include "row_prompt.c"

enum { SELF, CROSS, FFN, PARTS_OF_BLOCK };
enum { BEFORE, AFTER, OF_SUM, NORMS_OF_PART };
enum { Q, K, V, OUT, GATE, UP, DOWN, CROSS_Q, CROSS_OUT, JOBS }; /* without a gate, GATE is up, and UP is none */

typedef struct {
  void *x, *scratch;    /* rows of `width` numbers, which become the block's output; `qkv_block_scratch` bytes */
  const int64_t *k_to, *v_to; /* where new keys and values are stored: row r from number k_to[r] on, groups as far apart
                                 as `attend` says */
  Norm norms[PARTS_OF_BLOCK][NORMS_OF_PART]; /* weights, or none */
  Norm heads[2];        /* of each head of a query and of a key, or none */
  Job jobs[JOBS];       /* weights */
  Turn turn;            /* angles of queries and keys; no cos: none */
  Attend attend, cross; /* cross: no heads: there is no source */
  Gate gate;
  int64_t rows, width, laid_bytes; /* laid_bytes: of the largest x that is laid out */
  int32_t low;
} Block;

static void *allocate(uint8_t **scratch, int64_t bytes) { /* the next part of it */
  void *found = *scratch;
  *scratch += (bytes + 63) / 64 * 64;
  return found;
}

static int64_t greatest(int64_t a, int64_t b) { return a > b ? a : b; }

static int part_of(int job) { return job < GATE ? SELF : job < CROSS_Q ? FFN : CROSS; }

static void connect_attention(const Block *b, Attend *attend, const void *q, int64_t step, void *out) {
  attend->q = q, attend->q_step = step, attend->out = out, attend->rows = b->rows, attend->low = b->low;
}

/* Every part reads what the one before wrote. Returns where the scratch memory ends. */
static uint8_t *connect_parts(Block *b) {
  int64_t rows = b->rows, size = b->low ? 2 : 4, most = laid_room(0), gated = b->jobs[UP].n > 0;
  int64_t all = b->jobs[Q].n + b->jobs[K].n + b->jobs[V].n, both = b->jobs[GATE].n + b->jobs[UP].n, ffn = b->jobs[GATE].n;
  int64_t own = b->attend.heads * b->attend.value_size, cross = b->cross.heads * b->cross.value_size;
  for (int n = 0; n < JOBS; n++) {
    Job *job = b->jobs + n;
    job->rows = rows, job->narrow = b->low;
    job->k = n == OUT ? own : n == CROSS_OUT ? cross : n == DOWN ? ffn : b->width;
    job->step = n <= V ? all : n == GATE || n == UP ? both : n == CROSS_Q ? job->n : b->width;
    most = greatest(job->k, most);
  }
  b->laid_bytes = ((rows + MOST - 1) / MOST * MOST * most * 4 + 127) / 64 * 64;
  uint8_t *scratch = (uint8_t *)(((uintptr_t)b->scratch + 63) & ~(uintptr_t)63);
  b->scratch = scratch;
  allocate(&scratch, 3 * b->laid_bytes);
  uint8_t *normed = allocate(&scratch, rows * b->width * size), *more = allocate(&scratch, rows * b->width * size);
  uint8_t *three = allocate(&scratch, rows * greatest(all, b->jobs[CROSS_Q].n) * size);
  uint8_t *z = allocate(&scratch, rows * greatest(own, cross) * size);
  uint8_t *two = allocate(&scratch, rows * both * size), *act = allocate(&scratch, rows * ffn * size);
  for (int n = 0; n < PARTS_OF_BLOCK * NORMS_OF_PART; n++) {
    Norm *norm = b->norms[0] + n;
    int which = n % NORMS_OF_PART;
    norm->x = which == AFTER ? more : b->x, norm->out = which == BEFORE ? normed : which == AFTER ? more : b->x;
    norm->rows = rows, norm->n = b->width, norm->low = b->low;
  }
  for (int n = 0; n < JOBS; n++) {
    Job *job = b->jobs + n;
    job->x = n == OUT || n == CROSS_OUT ? z : n == DOWN ? act : b->norms[part_of(n)][BEFORE].weight ? normed : b->x;
    int64_t place = n == K || n == V || n == UP; /* neighbours of one kind share what is laid out */
    job->laid = place && job->kind == job[-1].kind ? job[-1].laid : (uint8_t *)b->scratch + (n == V ? 2 : place) * b->laid_bytes;
  }
  b->jobs[Q].out = b->jobs[CROSS_Q].out = three, b->jobs[K].out = three + b->jobs[Q].n * size;
  b->jobs[V].out = three + (b->jobs[Q].n + b->jobs[K].n) * size;
  b->jobs[OUT].out = b->jobs[CROSS_OUT].out = b->jobs[DOWN].out = more;
  b->jobs[GATE].out = two, b->jobs[UP].out = two + ffn * size;
  b->turn.x = three, b->turn.rows = rows, b->turn.step = all, b->turn.low = b->low, b->turn.size = b->attend.size;
  b->turn.heads = b->attend.heads + b->attend.groups; /* keys stand behind queries */
  connect_attention(b, &b->attend, three, all, z);
  connect_attention(b, &b->cross, three, b->jobs[CROSS_Q].n, z);
  b->gate.gate = two, b->gate.up = gated ? two + ffn * size : 0, b->gate.out = act;
  b->gate.rows = rows, b->gate.n = ffn, b->gate.step = both, b->gate.low = b->low;
  return scratch;
}

typedef struct {
  Block *block;
  int64_t count;
  Ask number;
  Barrier barrier;
  int32_t alone, failed; /* alone: there is one row */
} BlockTeam;

static void store_row(const Block *b, int64_t r) {
  const Attend *at = &b->attend;
  int64_t size = b->low ? 2 : 4;
  const uint8_t *k = (const uint8_t *)b->jobs[K].out + r * b->jobs[K].step * size;
  const uint8_t *v = (const uint8_t *)b->jobs[V].out + r * b->jobs[V].step * size;
  for (int64_t g = 0; g < at->groups; g++) {
    memcpy((uint8_t *)at->k + (b->k_to[r] + g * at->k_group) * size, k + g * at->size * size, (size_t)(at->size * size));
    memcpy((uint8_t *)at->v + (b->v_to[r] + g * at->v_group) * size, v + g * at->value_size * size,
           (size_t)(at->value_size * size));
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

static void wait_for_all(const BlockTeam *team) {
  if (team->barrier) team->barrier();
}

/* Between parts that one thread does where there is one row: they are too small to be shared, and it need not wait. */
static void wait_for_small(const BlockTeam *team) {
  if (!team->alone) wait_for_all(team);
}

/* Products from job `first` on, which read the same x. */
static void multiply_jobs(BlockTeam *team, int first, int count, int64_t thread, int64_t threads) {
  Block *b = team->block;
  if (!team->alone || thread == 0) lay_out_share(b->jobs + first, count, thread, team->alone ? 1 : threads);
  wait_for_all(team);
  if (multiply_share(b->jobs + first, count, thread, threads)) team->failed = 1;
  wait_for_all(team);
}

static void norm_if(const Norm *norm, int64_t first, int64_t end) {
  if (norm->weight) norm_rows(norm, first, end);
}

/* What a part computed is added to the states of these rows. */
static void add_update(const Block *b, int part, int64_t first, int64_t end) {
  const void *update = b->norms[part][AFTER].x;
  norm_if(&b->norms[part][AFTER], first, end);
  for (int64_t i = first * b->width; i < end * b->width; i += LANES)
    write(b->x, i, b->low, read(b->x, i, b->low) + read(update, i, b->low));
  norm_if(&b->norms[part][OF_SUM], first, end);
}

/* What stands between the products for queries and keys and attention itself. */
static void place_keys(const BlockTeam *team, int64_t first, int64_t end) {
  const Block *b = team->block;
  for (int64_t r = first; r < end; r++) norm_heads(b, r);
  if (b->turn.cos) rotate_rows(&b->turn, first, end);
  for (int64_t r = first; r < end; r++) store_row(b, r);
}

static void attend_all(BlockTeam *team, const Attend *attend, int64_t thread, int64_t threads) {
  if (attend_share(attend, thread, threads)) team->failed = 1;
  wait_for_all(team);
}

static void run_block(BlockTeam *team, int64_t thread, int64_t threads) {
  Block *b = team->block;
  /* the small parts: of all rows among all threads, or of one row by the first thread, to which the layout falls too */
  int64_t own = team->alone ? 0 : thread, of = team->alone ? 1 : threads, busy = !team->alone || thread == 0;
  int64_t first = b->rows * own / of, end = busy ? b->rows * (own + 1) / of : first, parts = b->gate.n / LANES;
  norm_if(&b->norms[SELF][BEFORE], first, end);
  wait_for_small(team);
  multiply_jobs(team, Q, 3, thread, threads);
  place_keys(team, first, end);
  wait_for_all(team);
  attend_all(team, &b->attend, thread, threads);
  multiply_jobs(team, OUT, 1, thread, threads);
  add_update(b, SELF, first, end);
  if (b->cross.heads) {
    norm_if(&b->norms[CROSS][BEFORE], first, end);
    wait_for_small(team);
    multiply_jobs(team, CROSS_Q, 1, thread, threads);
    attend_all(team, &b->cross, thread, threads);
    multiply_jobs(team, CROSS_OUT, 1, thread, threads);
    add_update(b, CROSS, first, end);
  }
  norm_if(&b->norms[FFN][BEFORE], first, end);
  wait_for_small(team);
  multiply_jobs(team, GATE, b->gate.up ? 2 : 1, thread, threads);
  for (int64_t r = 0; r < b->rows && busy; r++)
    gate_columns(&b->gate, r, parts * own / of * LANES, parts * (own + 1) / of * LANES);
  wait_for_small(team);
  multiply_jobs(team, DOWN, 1, thread, threads);
  add_update(b, FFN, first, end);
}

static void run_blocks(void *given) {
  BlockTeam *all = given, team = *all;
  int64_t thread = team.number ? team.number() : 0, threads = count_threads(team.number);
  for (int64_t n = 0; n < all->count; n++) {
    team.block = all->block + n;
    run_block(&team, thread, threads);
  }
  if (team.failed) all->failed = 1;
}

void qkv_open(Ask size) { team_size = size; }

int64_t qkv_block_scratch(Block *block) {
  block->scratch = 0;
  return connect_parts(block) - (uint8_t *)0 + 64;
}

/* x through `count` blocks that have it and their scratch memory in common; 0 where it was done. */
int qkv_blocks(Block *blocks, int64_t count, Fork fork, Ask number, Barrier barrier, int64_t threads) {
  for (int64_t n = 0; n < count; n++) connect_parts(blocks + n);
  BlockTeam team = {blocks, count, threads > 1 ? number : 0, threads > 1 ? barrier : 0, blocks->rows == 1, 0};
  if (threads > 1) fork(run_blocks, &team, (unsigned)threads, 0);
  else run_blocks(&team);
  return team.failed;
}
