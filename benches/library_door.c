/* One client of the library door's comparison: get and set of 128 B and 5 KB, delete and increment, one thread, keys in turn.
 *
 * Compiled with -DLEAN it calls libkeyway, otherwise libmemcached, whichever the loader finds. It prints a line for each operation:
 * its name, the mean of a loop that looks at the clock twice, and the median and 99th percentile of calls that are timed one by one
 * by the processor's counter, less what two looks at that cost, nanoseconds. A wrong answer ends it with 1.
 *
 *     library_door PLACE LOOPS        (PLACE: a region, or HOST:PORT, or a socket's path, or keyway:REGION)
 *     library_door PLACE LOOPS get    so many gets of 128 B (or `set`; `delete`: a set and a delete), without a clock: to count instructions (callgrind)
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KEYS 256
#define TIMED 4096
#define LARGE 5120

static char keys[KEYS][17];
static char value[LARGE];

static void wrong(const char *what) {
  fprintf(stderr, "library_door: a wrong answer: %s\n", what);
  exit(1);
}

#ifdef LEAN
#include <keyway.h>
static keyway *cache;
static void start(const char *place) {
  cache = keyway_open(place, NULL);
  if (!cache) { fprintf(stderr, "library_door: %s\n", keyway_message()); exit(1); }
}
static size_t get(const char *key) {
  static char buffer[LARGE];
  keyway_item item;
  return keyway_get(cache, key, 16, buffer, sizeof(buffer), &item) == KEYWAY_OK ? item.value_len : 0;
}
static int set(const char *key, const char *bytes, size_t length) { return keyway_set(cache, key, 16, bytes, length, 0, 0) == KEYWAY_OK; }
static int del(const char *key) { return keyway_delete(cache, key, 16) == KEYWAY_OK; }
static int increment(const char *key) {
  uint64_t number;
  return keyway_incr(cache, key, 16, 1, &number) == KEYWAY_OK;
}
#else
#include <libmemcached/memcached.h>
static memcached_st *cache;
static void start(const char *place) {
  cache = memcached_create(NULL);
  memcached_server_list_st list = memcached_servers_parse(place);
  memcached_server_push(cache, list);
  memcached_server_list_free(list);
  memcached_behavior_set(cache, MEMCACHED_BEHAVIOR_TCP_NODELAY, 1);
}
static size_t get(const char *key) {
  size_t length;
  uint32_t flags;
  memcached_return_t rc;
  char *bytes = memcached_get(cache, key, 16, &length, &flags, &rc);
  free(bytes);
  return bytes ? length : 0;
}
static int set(const char *key, const char *bytes, size_t length) { return memcached_set(cache, key, 16, bytes, length, 0, 0) == MEMCACHED_SUCCESS; }
static int del(const char *key) { return memcached_delete(cache, key, 16, 0) == MEMCACHED_SUCCESS; }
static int increment(const char *key) {
  uint64_t number;
  return memcached_increment(cache, key, 16, 1, &number) == MEMCACHED_SUCCESS;
}
#endif

static uint64_t ticks(void) {
#if defined(__x86_64__)
  unsigned low, high;
  __asm__ volatile("lfence; rdtsc; lfence" : "=a"(low), "=d"(high)::"memory");
  return (uint64_t) high << 32 | low;
#elif defined(__aarch64__)
  uint64_t now;
  __asm__ volatile("isb; mrs %0, cntvct_el0; isb" : "=r"(now)::"memory");
  return now;
#endif
}

static double now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1e9 + now.tv_nsec;
}

static double ns_per_tick;
static uint64_t look;

/* What a tick is worth, and what two looks cost at least. */
static void calibrate(void) {
  double from = now_ns();
  uint64_t first = ticks();
  while (now_ns() - from < 2e7) {}
  ns_per_tick = (now_ns() - from) / (double) (ticks() - first);
  look = UINT64_MAX;
  for (int i = 0; i < 1000; i++) {
    uint64_t before = ticks(), after = ticks();
    if (after - before < look) look = after - before;
  }
}

static int compare(const void *a, const void *b) {
  uint64_t left = *(const uint64_t *) a, right = *(const uint64_t *) b;
  return (left > right) - (left < right);
}

static uint64_t samples[TIMED];

static void report(const char *name, double mean) {
  qsort(samples, TIMED, sizeof(*samples), compare);
  printf("%s %.1f %.1f %.1f\n", name, mean, (double) samples[TIMED / 2] * ns_per_tick, (double) samples[TIMED * 99 / 100] * ns_per_tick);
}

/* Times an expression over all keys in turn; prepare is run, off the clock, before each round of them. */
#define MEASURE(name, prepare, expression)                               \
  do {                                                                   \
    double spent = 0;                                                    \
    long done = 0;                                                       \
    for (long round = 0; round * KEYS < loops + KEYS; round++) {         \
      for (int k = 0; k < KEYS; k++) { const char *key = keys[k]; (void) key; prepare; } \
      double from = now_ns();                                            \
      for (int k = 0; k < KEYS; k++) {                                   \
        const char *key = keys[k];                                       \
        if (!(expression)) wrong(name);                                  \
      }                                                                  \
      if (round) { spent += now_ns() - from; done += KEYS; }             \
    }                                                                    \
    for (int i = 0; i < TIMED; i += KEYS) {                              \
      for (int k = 0; k < KEYS; k++) { const char *key = keys[k]; (void) key; prepare; } \
      for (int k = 0; k < KEYS; k++) {                                   \
        const char *key = keys[k];                                       \
        uint64_t before = ticks();                                       \
        int right = (expression);                                        \
        uint64_t took = ticks() - before;                                \
        if (!right) wrong(name);                                         \
        samples[i + k] = took > look ? took - look : 0;                  \
      }                                                                  \
    }                                                                    \
    report(name, spent / (double) done);                                 \
  } while (0)

int main(int argc, char **argv) {
  if (argc != 3 && argc != 4) return 2;
  long loops = atol(argv[2]);
  for (int k = 0; k < KEYS; k++) snprintf(keys[k], sizeof(keys[k]), "%016x", 0x9e3779b1u * (unsigned) (k + 1));
  memset(value, 'v', sizeof(value));
  if (argc == 3) calibrate();
  start(argv[1]);
  for (int k = 0; k < KEYS; k++)
    if (!set(keys[k], value, 128)) wrong("fill");
  if (argc == 4) {
    for (long i = 0; i < loops; i++) {
      const char *key = keys[i % KEYS];
      int is_right = *argv[3] == 'g' ? get(key) == 128 : *argv[3] == 's' ? set(key, value, 128) : set(key, value, 128) && del(key);
      if (!is_right) wrong(argv[3]);
    }
    return 0;
  }
  MEASURE("get-128", , get(key) == 128);
  MEASURE("set-128", , set(key, value, 128));
  MEASURE("set-5K", , set(key, value, LARGE));
  MEASURE("get-5K", , get(key) == LARGE);
  MEASURE("delete", if (!set(key, value, 128)) wrong("set before delete"), del(key));
  for (int k = 0; k < KEYS; k++)
    if (!set(keys[k], "1000", 4)) wrong("a number");
  MEASURE("increment", , increment(key));
  return 0;
}
