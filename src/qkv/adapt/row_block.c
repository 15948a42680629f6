/* A decoding step of whole blocks: norm, queries, keys and values, rotation, attention, sum, norm, feed-forward, sum.
   The parts are those of row_products.c and row_ops.c, in the same order, so that a row has the same bits by either way;
   threads are started once for all blocks and wait for one another at a barrier between the parts. */

#include "row_products.c"
#include "row_ops.c"

typedef struct {
  void *x, *scratch;    /* rows of `width` numbers, which become the block's output; `qkv_block_scratch` bytes */
  void *keys, *values;  /* where new ones are stored: row r from number k_to[r] on, groups as far apart as `attend` says */
  const int64_t *k_to, *v_to;
  Norm norms[4];        /* weights: before attention and before the network; after them, or none */
  Norm heads[2];        /* of each head of a query and of a key, or none */
  Job jobs[7];          /* weights: of q k v out, up or gate, up where there is a gate, down */
  Turn turn;            /* angles of queries and keys; no cos: none */
  Attend attend;
  Gate gate;
  int64_t rows, width, laid_bytes; /* laid_bytes: of the largest x that is laid out */
  int32_t low;
} Block;

static void *allocate(uint8_t **scratch, int64_t bytes) { /* the next part of it */
  void *found = *scratch;
  *scratch += (bytes + 63) / 64 * 64;
  return found;
}

/* Every part reads what the one before wrote. Returns where the scratch memory ends. */
static uint8_t *connect_parts(Block *b) {
  int64_t rows = b->rows, size = b->low ? 2 : 4, most = 0, gated = b->jobs[5].n > 0;
  int64_t all = b->jobs[0].n + b->jobs[1].n + b->jobs[2].n, both = b->jobs[4].n + b->jobs[5].n, ffn = b->jobs[4].n;
  for (int n = 0; n < 7; n++) {
    Job *job = b->jobs + n;
    job->rows = rows, job->narrow = b->low;
    job->k = n == 3 ? b->attend.heads * b->attend.value_size : n == 6 ? ffn : b->width;
    job->step = n < 3 ? all : n == 4 || n == 5 ? both : b->width;
    most = job->k > most ? job->k : most;
  }
  b->laid_bytes = ((rows + MOST - 1) / MOST * MOST * most * 4 + 127) / 64 * 64;
  uint8_t *scratch = (uint8_t *)(((uintptr_t)b->scratch + 63) & ~(uintptr_t)63);
  b->scratch = scratch;
  allocate(&scratch, 3 * b->laid_bytes);
  uint8_t *normed = allocate(&scratch, rows * b->width * size), *three = allocate(&scratch, rows * all * size);
  uint8_t *mixed = allocate(&scratch, rows * b->jobs[3].k * size), *more = allocate(&scratch, rows * b->width * size);
  uint8_t *sum = allocate(&scratch, rows * b->width * size), *two = allocate(&scratch, rows * both * size);
  uint8_t *act = allocate(&scratch, rows * ffn * size);
  for (int n = 0; n < 4; n++) {
    Norm *norm = b->norms + n;
    norm->x = n == 0 ? b->x : n == 1 ? sum : more, norm->out = n < 2 ? normed : more;
    norm->rows = rows, norm->n = b->width, norm->low = b->low;
  }
  for (int n = 0; n < 7; n++) {
    Job *job = b->jobs + n;
    job->x = n == 3 ? mixed : n == 6 ? act : normed;
    int64_t place = n == 1 || n == 2 || n == 5; /* neighbours of one kind share what is laid out */
    job->laid = place && job->kind == job[-1].kind ? job[-1].laid : (uint8_t *)b->scratch + (n == 2 ? 2 : place) * b->laid_bytes;
  }
  b->jobs[0].out = three, b->jobs[1].out = three + b->jobs[0].n * size;
  b->jobs[2].out = three + (b->jobs[0].n + b->jobs[1].n) * size;
  b->jobs[3].out = b->jobs[6].out = more, b->jobs[4].out = two, b->jobs[5].out = two + ffn * size;
  b->turn.x = three, b->turn.rows = rows, b->turn.step = all, b->turn.low = b->low, b->turn.size = b->attend.size;
  b->turn.heads = b->attend.heads + b->attend.groups; /* keys stand behind queries */
  b->attend.q = three, b->attend.out = mixed, b->attend.rows = rows, b->attend.q_step = all, b->attend.low = b->low;
  b->attend.k = b->keys, b->attend.v = b->values;
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

static void add_columns(const Block *b, const void *x, const void *more, void *to, int64_t number, int64_t threads) {
  int64_t all = b->rows * b->width / LANES;
  for (int64_t i = all * number / threads; i < all * (number + 1) / threads; i++)
    write(to, i * LANES, b->low, read(x, i * LANES, b->low) + read(more, i * LANES, b->low));
}

static void store_row(const Block *b, int64_t r) {
  const Attend *at = &b->attend;
  int64_t size = b->low ? 2 : 4;
  const uint8_t *k = (const uint8_t *)b->jobs[1].out + r * b->jobs[1].step * size;
  const uint8_t *v = (const uint8_t *)b->jobs[2].out + r * b->jobs[2].step * size;
  for (int64_t g = 0; g < at->groups; g++) {
    memcpy((uint8_t *)b->keys + (b->k_to[r] + g * at->k_group) * size, k + g * at->size * size, (size_t)(at->size * size));
    memcpy((uint8_t *)b->values + (b->v_to[r] + g * at->v_group) * size, v + g * at->value_size * size,
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
static void multiply_jobs(const BlockTeam *team, int first, int count, int64_t thread, int64_t threads) {
  Block *b = team->block;
  if (!team->alone || thread == 0) lay_out_share(b->jobs + first, count, thread, team->alone ? 1 : threads);
  wait_for_all(team);
  multiply_share(b->jobs + first, count, thread, threads);
  wait_for_all(team);
}

/* x + update, which is normed first where there is a norm for it. */
static void add_update(const BlockTeam *team, const void *x, int job, const Norm *norm, void *to, int64_t thread,
                       int64_t threads) {
  const Block *b = team->block;
  if (norm->weight) {
    norm_rows(norm, b->rows * thread / threads, b->rows * (thread + 1) / threads);
    wait_for_small(team);
  }
  add_columns(b, x, b->jobs[job].out, to, thread, threads);
}

/* What stands between the products for queries and keys and attention itself. */
static void place_keys(const BlockTeam *team, int64_t first, int64_t end) {
  const Block *b = team->block;
  for (int64_t r = first; r < end; r++) norm_heads(b, r);
  if (b->turn.cos) rotate_rows(&b->turn, first, end);
  for (int64_t r = first; r < end; r++) store_row(b, r);
}

static void run_block(BlockTeam *team, int64_t thread, int64_t threads) {
  Block *b = team->block;
  /* the small parts: of all rows among all threads, or of one row by the first thread, to which the layout falls too */
  int64_t own = team->alone ? 0 : thread, of = team->alone ? 1 : threads, busy = !team->alone || thread == 0;
  int64_t first = b->rows * own / of, end = busy ? b->rows * (own + 1) / of : first, parts = b->gate.n / LANES;
  norm_rows(b->norms, first, end);
  wait_for_small(team);
  multiply_jobs(team, 0, 3, thread, threads);
  place_keys(team, first, end);
  wait_for_all(team);
  if (attend_share(&b->attend, thread, threads)) team->failed = 1;
  wait_for_all(team);
  multiply_jobs(team, 3, 1, thread, threads);
  if (busy) add_update(team, b->x, 3, b->norms + 2, (void *)b->norms[1].x, own, of);
  wait_for_small(team);
  norm_rows(b->norms + 1, first, end);
  wait_for_small(team);
  multiply_jobs(team, 4, b->gate.up ? 2 : 1, thread, threads);
  for (int64_t r = 0; r < b->rows && busy; r++)
    gate_columns(&b->gate, r, parts * own / of * LANES, parts * (own + 1) / of * LANES);
  wait_for_small(team);
  multiply_jobs(team, 6, 1, thread, threads);
  if (busy) add_update(team, b->norms[1].x, 6, b->norms + 3, b->x, own, of);
  wait_for_small(team);
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
