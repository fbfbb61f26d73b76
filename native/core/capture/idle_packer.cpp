#include "idle_packer.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <new>

namespace memlens::capture {
namespace {

constexpr size_t STEP_BYTES = 256 << 10;  // a millisecond

void run_in_idle_time() {
  const sched_param none{};
  if (sched_setscheduler(0, SCHED_IDLE, &none) != 0)  // of this thread
    setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 19);
}

// Whether a CPU has nothing to do. The policy alone is not enough: a profile of two busy threads had 11 to 16 % of a CPU in this one.
class Idleness {
 public:
  Idleness() : loadavg_(::open("/proc/loadavg", O_RDONLY | O_CLOEXEC)) {}
  ~Idleness() {
    if (loadavg_ >= 0) ::close(loadavg_);
  }
  Idleness(const Idleness&) = delete;
  Idleness& operator=(const Idleness&) = delete;

  // For some time, not only for the moment in which threads wait for each other.
  void wait(const std::atomic<bool>& stop) const {
    if (is_there()) return;
    for (int seen = 0; seen < 3 && !stop.load(std::memory_order_relaxed);) {
      const timespec pause{.tv_sec = 0, .tv_nsec = 20'000'000};
      nanosleep(&pause, nullptr);
      seen = is_there() ? seen + 1 : 0;
    }
  }

 private:
  // Of the machine, this thread included: "0.20 0.18 0.12 1/80 11206". True where it cannot be told.
  bool is_there() const {
    char text[128];
    const ssize_t bytes = loadavg_ < 0 ? -1 : pread(loadavg_, text, sizeof text - 1, 0);
    if (bytes <= 0) return true;
    text[bytes] = 0;
    int running = 0;
    return sscanf(text, "%*s %*s %*s %d/", &running) != 1 || running <= cpus_;
  }

  const int loadavg_;
  const int cpus_ = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
};

}  // namespace

struct IdlePacker::Shared {
  struct Job {
    std::span<const unsigned char> payload;
    std::vector<unsigned char> packed;
  };
  // Jobs from `done` to `given` are the thread's, the others its maker's.
  Job jobs[MOST];
  std::atomic<uint64_t> given{0}, done{0};
  std::atomic<bool> stop{false};
  uint64_t taken = 0;
  bool has_thread = false;
  int level = 1;

  void pack(Job& job, ZSTD_CCtx* context, const Idleness& idleness) const {
    ZSTD_CCtx_reset(context, ZSTD_reset_session_only);
    ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, level);
    ZSTD_CCtx_setPledgedSrcSize(context, job.payload.size());
    job.packed.resize(ZSTD_compressBound(job.payload.size()));
    ZSTD_outBuffer out{job.packed.data(), job.packed.size(), 0};
    ZSTD_inBuffer in{job.payload.data(), 0, 0};
    size_t left = 1;
    while (left != 0 && !stop.load(std::memory_order_relaxed)) {
      idleness.wait(stop);
      in.size = std::min(job.payload.size(), in.pos + STEP_BYTES);
      left = ZSTD_compressStream2(context, &out, &in, in.size == job.payload.size() ? ZSTD_e_end : ZSTD_e_continue);
      if (ZSTD_isError(left)) break;
      if (in.size < job.payload.size()) left = 1;
    }
    job.packed.resize(left != 0 || out.pos >= job.payload.size() ? 0 : out.pos);
  }

  static void* thread_main(void* argument) {
    const std::unique_ptr<std::shared_ptr<Shared>> mine(static_cast<std::shared_ptr<Shared>*>(argument));
    Shared& shared = **mine;
    run_in_idle_time();
    const Idleness idleness;
    const std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)> context(ZSTD_createCCtx(), ZSTD_freeCCtx);
    for (uint64_t next = 0;; next++) {
      shared.given.wait(next, std::memory_order_acquire);
      if (shared.stop.load()) return nullptr;
      Job& job = shared.jobs[next % MOST];
      try {
        if (context != nullptr) shared.pack(job, context.get(), idleness);
      } catch (const std::bad_alloc&) {
        job.packed.clear();
      }
      shared.done.store(next + 1, std::memory_order_release);
    }
  }

  bool start(const std::shared_ptr<Shared>& self) {
    auto* argument = new std::shared_ptr<Shared>(self);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_t thread;
    has_thread = pthread_create(&thread, nullptr, thread_main, argument) == 0;
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    if (has_thread) pthread_detach(thread);
    else delete argument;
    return has_thread;
  }
};

IdlePacker::IdlePacker(int level) : shared_(std::make_shared<Shared>()) { shared_->level = level; }

IdlePacker::~IdlePacker() {
  shared_->stop.store(true);
  shared_->given.fetch_add(1);  // wakes it
  shared_->given.notify_one();
}

bool IdlePacker::give(std::span<const unsigned char> payload) {
  const uint64_t number = shared_->given.load(std::memory_order_relaxed);
  if (number - shared_->taken == MOST) return false;
  if (!shared_->has_thread && !shared_->start(shared_)) return false;
  shared_->jobs[number % MOST].payload = payload;
  shared_->given.store(number + 1, std::memory_order_release);
  shared_->given.notify_one();
  return true;
}

bool IdlePacker::is_working() const {
  return shared_->done.load(std::memory_order_acquire) != shared_->given.load(std::memory_order_relaxed);
}

bool IdlePacker::take(std::vector<unsigned char>* packed) {
  if (shared_->done.load(std::memory_order_acquire) == shared_->taken) return false;
  packed->swap(shared_->jobs[shared_->taken++ % MOST].packed);
  return true;
}

}  // namespace memlens::capture
