// Stand-ins for functions that an older glibc lacks, for wheels that are linked against that one's symbols (scripts/wheel). Hidden: each
// library has its own.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

// glibc 2.33. Before it, programs called these, with the version of the structure; newer ones still have them.
struct stat;
extern int __xstat(int version, const char* path, struct stat* to);
extern int __lxstat(int version, const char* path, struct stat* to);
extern int __fxstat(int version, int file, struct stat* to);
enum { kStatVersion = 1 };  // of struct stat on 64-bit machines

int stat(const char* path, struct stat* to) { return __xstat(kStatVersion, path, to); }
int lstat(const char* path, struct stat* to) { return __lxstat(kStatVersion, path, to); }
int fstat(int file, struct stat* to) { return __fxstat(kStatVersion, file, to); }
int stat64(const char* path, struct stat* to) { return stat(path, to); }
int lstat64(const char* path, struct stat* to) { return lstat(path, to); }
int fstat64(int file, struct stat* to) { return fstat(file, to); }

// glibc 2.32: whether reference counts may be changed without atomic instructions. They may not.
char __libc_single_threaded = 0;

// glibc 2.30. Where it is missing, the time left is counted on the wall clock, as libstdc++ does there: a caller looks at its own clock
// afterwards, and waits again.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const struct timespec* until) {
  typedef int Clockwait(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
  static Clockwait* volatile found;
  static volatile int looked;
  if (!looked) {
    found = (Clockwait*)dlsym(RTLD_DEFAULT, "pthread_cond_clockwait");
    looked = 1;
  }
  if (found) return found(condition, mutex, clock, until);
  struct timespec now;
  struct timespec deadline;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &deadline);
  deadline.tv_sec += until->tv_sec - now.tv_sec;
  deadline.tv_nsec += until->tv_nsec - now.tv_nsec;
  if (deadline.tv_nsec < 0) {
    deadline.tv_nsec += 1000000000;
    --deadline.tv_sec;
  } else if (deadline.tv_nsec >= 1000000000) {
    deadline.tv_nsec -= 1000000000;
    ++deadline.tv_sec;
  }
  return pthread_cond_timedwait(condition, mutex, &deadline);
}

// glibc 2.36, for std::random_device.
unsigned arc4random(void) {
  unsigned number;
  while (getrandom(&number, sizeof number, 0) != sizeof number)
    if (errno != EINTR) abort();
  return number;
}

// Debian's archives of the picture libraries are compiled for programs, which copy this variable; scripts/wheel gives it this name there.
FILE* treadle_stderr;
__attribute__((constructor)) static void set_stderr(void) { treadle_stderr = stderr; }
