/* Loads the library (argv[1]) while a thread of this program already runs: that thread, and threads that begin later, use it, and so
 * does a forked child. Prints OK. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <keyway.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 8

#define CHECK(what)                                                      \
  do {                                                                   \
    if (!(what)) {                                                       \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);         \
      exit(1);                                                           \
    }                                                                    \
  } while (0)

static keyway *cache;
static __typeof__(&keyway_open) open_region;
static __typeof__(&keyway_get) get;
static __typeof__(&keyway_set) set;
static __typeof__(&keyway_close) close_region;
static sem_t loaded;

static void *found(void *library, const char *name) {
  void *symbol = dlsym(library, name);
  CHECK(symbol);
  return symbol;
}

/* Each thread has a key of its own, and sees the others'. */
static void *use(void *number) {
  char key[16], value[16];
  keyway_item item;
  sem_wait(&loaded);
  int length = snprintf(key, sizeof(key), "thread-%ld", (long) number);
  for (int i = 0; i < 100; i++) {
    CHECK(set(cache, key, (size_t) length, key, (size_t) length, 0, 0) == KEYWAY_OK);
    CHECK(get(cache, key, (size_t) length, value, sizeof(value), &item) == KEYWAY_OK);
    CHECK(item.value_len == (size_t) length && memcmp(key, value, item.value_len) == 0);
    CHECK(get(cache, "main", 4, value, sizeof(value), &item) == KEYWAY_OK && item.value_len == 4);
  }
  return NULL;
}

int main(int argc, char **argv) {
  pthread_t threads[THREADS];
  char value[16];
  keyway_item item;
  CHECK(argc == 2);
  CHECK(sem_init(&loaded, 0, 0) == 0);
  CHECK(pthread_create(&threads[0], NULL, use, (void *) 0) == 0);

  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) fprintf(stderr, "%s\n", dlerror());
  CHECK(library);
  *(void **) &open_region = found(library, "keyway_open");
  *(void **) &get = found(library, "keyway_get");
  *(void **) &set = found(library, "keyway_set");
  *(void **) &close_region = found(library, "keyway_close");

  cache = open_region("memfd", NULL);
  CHECK(cache);
  CHECK(set(cache, "main", 4, "main", 4, 0, 0) == KEYWAY_OK);
  for (long i = 1; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, use, (void *) i) == 0);
  for (int i = 0; i < THREADS; i++) sem_post(&loaded);
  for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  CHECK(get(cache, "thread-0", 8, value, sizeof(value), &item) == KEYWAY_OK);

  /* A child has no anonymous memory of its parent: it gets an error, and the parent's session stays what it is. */
  pid_t child = fork();
  if (child == 0) _exit(get(cache, "main", 4, value, sizeof(value), &item) >= KEYWAY_ERROR_ARGUMENT ? 0 : 1);
  int status;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(get(cache, "main", 4, value, sizeof(value), &item) == KEYWAY_OK);
  close_region(cache);
  puts("OK");
  return 0;
}
