/* Preloaded into a process: its wall clock runs apart from the machine's by as many seconds as stand in a file.
 *
 * As after a real jump, the monotonic clock and whatever waits for a while are as they were.  Deadlines given as wall
 * time are put back into the machine's, else they would never come, or at once.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define YEARS 1000000000 /* seconds: more than any machine has been up, less than any wall clock shows */

static volatile int64_t none, *ahead = &none;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("WALL_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) abort();
    void *mapped = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED) abort();
    ahead = mapped;
}

static int is_wall(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

static struct timespec put_back(const struct timespec *deadline) {
    struct timespec own = *deadline;
    if (own.tv_sec > YEARS) own.tv_sec -= *ahead;
    return own;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static __typeof__(&clock_gettime) real;
    if (!real) real = REAL(clock_gettime);
    int failed = real(clock, now);
    if (!failed && is_wall(clock)) now->tv_sec += *ahead;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec precise;
    if (clock_gettime(CLOCK_REALTIME, &precise)) return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *told) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (told) *told = now.tv_sec;
    return now.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict deadline) {
    // Where there are two of that name, the older one's conditions are others.
    void *real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    struct timespec own = put_back(deadline);
    return (real ? (__typeof__(&pthread_cond_timedwait))real : REAL(pthread_cond_timedwait))(cond, mutex, &own);
}

int pthread_cond_clockwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex, clockid_t clock,
                           const struct timespec *restrict deadline) {
    struct timespec own = put_back(deadline);
    return REAL(pthread_cond_clockwait)(cond, mutex, clock, &own);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict deadline) {
    struct timespec own = put_back(deadline);
    return REAL(sem_timedwait)(semaphore, &own);
}

int sem_clockwait(sem_t *restrict semaphore, clockid_t clock, const struct timespec *restrict deadline) {
    struct timespec own = put_back(deadline);
    return REAL(sem_clockwait)(semaphore, clock, &own);
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *span, struct timespec *rest) {
    struct timespec own = flags & TIMER_ABSTIME ? put_back(span) : *span;
    return REAL(clock_nanosleep)(clock, flags, &own, rest);
}

long syscall(long number, ...) {
    long given[6];
    va_list arguments;
    va_start(arguments, number);
    for (int i = 0; i < 6; i++) given[i] = va_arg(arguments, long);
    va_end(arguments);
    struct timespec own;
    if (number == SYS_futex && (given[1] & FUTEX_CLOCK_REALTIME) && given[3]) {
        own = put_back((const struct timespec *)given[3]);
        given[3] = (long)&own;
    }
    return REAL(syscall)(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}
