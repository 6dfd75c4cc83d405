// Each variable has a queue of unfinished accesses in the order of pushing. Reads at the head of the queue are granted at once; a write is
// granted alone.
// An operation runs when all its accesses are granted. One lock serves a whole engine, because it is held only for a few list operations.
#include "treadle/engine.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <queue>
#include <thread>
#include <utility>

#include "core/base/checked.h"
#include "core/base/cpu_info.h"
#include "core/values/allocation.h"
#include "kernels/random/philox.h"
#include "treadle/error.h"

namespace treadle {
namespace {

struct Pushed;

}  // namespace

struct Engine::Variable::State {
  struct Access {
    std::shared_ptr<Pushed> operation;
    bool write;
    bool granted = false;
  };
  const void* engine = nullptr;
  std::deque<Access> accesses;
  std::exception_ptr error;
  std::atomic<uint64_t> version{0};
};

namespace {

using State = Engine::Variable::State;

struct Pushed {
  Engine::Operation run;
  std::vector<std::shared_ptr<State>> reads, writes;  // a variable that is written is only in `writes`
  size_t waits = 0;                                   // number of accesses that have not been granted yet
  int priority = 0;
  uint64_t number = 0;
};

// The operation that this thread is executing.
constinit thread_local const Pushed* under_way = nullptr;

struct UnderWay {
  explicit UnderWay(const Pushed* pushed) : before(std::exchange(under_way, pushed)) {}
  ~UnderWay() { under_way = before; }
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;
  const Pushed* before;
};

struct Later {
  bool operator()(const std::shared_ptr<Pushed>& a, const std::shared_ptr<Pushed>& b) const {
    return a->priority != b->priority ? a->priority < b->priority : a->number > b->number;
  }
};

}  // namespace

struct Engine::Impl {
  EngineOptions options;
  mutable std::mutex mutex;
  std::condition_variable work, ended;
  std::priority_queue<std::shared_ptr<Pushed>, std::vector<std::shared_ptr<Pushed>>, Later> ready;
  std::vector<std::thread> threads;
  std::vector<std::weak_ptr<State>> failed;  // variables with an error, in the order in which their operations failed
  std::exception_ptr unowned;                // error of an operation that writes no variable; only wait_all() can throw it
  uint64_t last_number = 0;
  size_t pending = 0;
  bool stopping = false;
  std::vector<Scratch> scratch;  // each one is created when it is first requested
  size_t next_scratch = 0;

  // Grants the accesses at the head of the variable's queue. @pre the caller holds `mutex`
  void grant(State& state) {
    for (size_t i = 0; i < state.accesses.size(); ++i) {
      auto& access = state.accesses[i];
      if (access.write && i > 0) return;
      if (!access.granted) {
        access.granted = true;
        if (--access.operation->waits == 0) ready.push(access.operation), work.notify_one();
      }
      if (access.write) return;
    }
  }

  void start_threads() {
    if (!threads.empty()) return;
    int count = options.num_threads > 0 ? options.num_threads : std::max(2, cpu_info().usable_cpus);
    for (int i = 0; i < count; ++i)
      threads.emplace_back([this] {
        std::unique_lock lock(mutex);
        for (;;) {
          work.wait(lock, [&] { return !ready.empty() || stopping; });
          if (ready.empty()) return;
          auto operation = ready.top();
          ready.pop();
          execute(std::move(operation), lock);
        }
      });
  }

  void execute(std::shared_ptr<Pushed> operation, std::unique_lock<std::mutex>& lock) {
    std::exception_ptr error;
    for (const auto& read : operation->reads)
      if (!error) error = read->error;
    lock.unlock();
    if (!error) {
      try {
        UnderWay scope(operation.get());
        operation->run();
      } catch (...) {
        error = std::current_exception();
      }
    }
    operation->run = {};  // destroys the function outside the lock, as its destructor may be slow or take locks
    lock.lock();
    for (const auto& write : operation->writes) {
      write->error = error;
      write->version.fetch_add(1, std::memory_order_relaxed);
      if (error) failed.push_back(write);
    }
    if (error && operation->writes.empty() && !unowned) unowned = error;
    for (const auto* list : {&operation->reads, &operation->writes}) {
      for (const auto& state : *list) {
        auto& accesses = state->accesses;
        accesses.erase(std::find_if(accesses.begin(), accesses.end(), [&](const auto& a) { return a.operation == operation; }));
        grant(*state);
      }
    }
    --pending;
    ended.notify_all();
  }
};

uint64_t Engine::Variable::version() const { return state_->version.load(std::memory_order_relaxed); }

Engine::Engine(const EngineOptions& options) : impl_(std::make_shared<Impl>()) { impl_->options = options; }

Engine::~Engine() {
  {
    std::unique_lock lock(impl_->mutex);
    impl_->ended.wait(lock, [&] { return impl_->pending == 0; });
    impl_->stopping = true;
    impl_->work.notify_all();
  }
  for (std::thread& thread : impl_->threads) thread.join();
}

Engine::Variable Engine::variable() {
  Variable made;
  made.state_ = std::make_shared<Variable::State>();
  made.state_->engine = impl_.get();
  return made;
}

struct Engine::Scratch::State {
  Variable variable;
  std::shared_ptr<Allocator> allocator;
  std::shared_ptr<Storage> storage;
};

struct Engine::RandomStream::State {
  Variable variable;
  kernels::RandomStream stream;
  int64_t next = 0;  // position in the sequence of random numbers
};

void Engine::Variable::expect_written(std::string_view what) const {
  if (!under_way || std::find(under_way->writes.begin(), under_way->writes.end(), state_) == under_way->writes.end())
    throw Error(ErrorCode::invalid_argument, std::string(what) + " is used outside of an operation that writes its variable");
}

Engine::Scratch Engine::scratch() {
  std::lock_guard lock(impl_->mutex);
  const auto count = static_cast<size_t>(std::max(1, impl_->options.num_scratch_spaces));
  const size_t index = impl_->next_scratch++ % count;
  if (index >= impl_->scratch.size()) {
    Scratch made;
    made.state_ = std::make_shared<Scratch::State>();
    made.state_->variable = variable();
    made.state_->allocator = impl_->options.allocator;
    impl_->scratch.push_back(std::move(made));
  }
  return impl_->scratch[index];
}

const Engine::Variable& Engine::Scratch::variable() const { return state_->variable; }

std::byte* Engine::Scratch::get(size_t size_bytes) const {
  state_->variable.expect_written("a scratch space");
  if (!state_->storage || state_->storage->size_bytes() < size_bytes) {
    const AllocationContext own{state_->allocator, nullptr};
    AllocationScope scope(state_->allocator ? &own : nullptr, MemoryClass::scratch);
    state_->storage.reset();
    state_->storage = Storage::allocate(size_bytes);
  }
  return state_->storage->data();
}

size_t Engine::Scratch::capacity_bytes() const {
  state_->variable.expect_written("a scratch space");
  return state_->storage ? state_->storage->size_bytes() : 0;
}

Engine::RandomStream Engine::random_stream(uint64_t seed) {
  RandomStream made;
  made.state_ = std::make_shared<RandomStream::State>();
  made.state_->variable = variable();
  made.state_->stream.key = seed;
  return made;
}

const Engine::Variable& Engine::RandomStream::variable() const { return state_->variable; }

void Engine::RandomStream::uniform(std::span<double> values) const {
  state_->variable.expect_written("a random stream");
  state_->stream.fill_uniform(state_->next, values.data(), static_cast<int64_t>(values.size()));
  state_->next += align_up(static_cast<int64_t>(values.size()), int64_t{2});  // random numbers are generated in pairs
}

void Engine::RandomStream::normal(std::span<double> values) const {
  state_->variable.expect_written("a random stream");
  state_->stream.fill_normal(state_->next, values.data(), static_cast<int64_t>(values.size()));
  state_->next += align_up(static_cast<int64_t>(values.size()), int64_t{2});
}

void Engine::RandomStream::seed(uint64_t seed) const {
  state_->variable.expect_written("a random stream");
  state_->stream.key = seed;
  state_->next = 0;
}

void Engine::push(Operation operation, std::span<const Variable> reads, std::span<const Variable> writes, int priority) {
  if (!operation) throw Error(ErrorCode::invalid_argument, "the operation is empty");
  auto pushed = std::make_shared<Pushed>();
  pushed->run = std::move(operation);
  pushed->priority = priority;
  auto add = [&](std::vector<std::shared_ptr<State>>& list, const Variable& variable) {
    if (!variable.state_ || variable.state_->engine != impl_.get())
      throw Error(ErrorCode::invalid_argument, "the variable belongs to another engine");
    for (const auto* one : {&pushed->writes, &pushed->reads})
      if (std::find(one->begin(), one->end(), variable.state_) != one->end()) return;
    list.push_back(variable.state_);
  };
  for (const Variable& variable : writes) add(pushed->writes, variable);
  for (const Variable& variable : reads) add(pushed->reads, variable);

  std::unique_lock lock(impl_->mutex);
  pushed->number = ++impl_->last_number;
  pushed->waits = pushed->reads.size() + pushed->writes.size() + 1;
  ++impl_->pending;
  for (const auto& state : pushed->writes) state->accesses.push_back({pushed, true});
  for (const auto& state : pushed->reads) state->accesses.push_back({pushed, false});
  for (const auto* list : {&pushed->writes, &pushed->reads})
    for (const auto& state : *list) impl_->grant(*state);
  if (impl_->options.naive) {
    // Waits until all accesses are granted, because another thread's operation may hold a variable. `waits` counts one more than the
    // accesses.
    impl_->ended.wait(lock, [&] { return pushed->waits == 1; });
    impl_->execute(std::move(pushed), lock);
    return;
  }
  impl_->start_threads();
  if (--pushed->waits == 0) {
    impl_->ready.push(std::move(pushed));
    impl_->work.notify_one();
  }
}

std::future<std::vector<Datum>> Engine::run_async(const Session& session, std::map<std::string, Datum> feeds,
                                                  std::vector<std::string> outputs, std::span<const Variable> reads,
                                                  std::span<const Variable> writes, int priority) {
  struct Promise {
    std::promise<std::vector<Datum>> promise;
    bool kept = false;
    ~Promise() {
      if (!kept)
        promise.set_exception(
            std::make_exception_ptr(Error(ErrorCode::cancelled, "the run did not begin: a variable that it reads holds an error")));
    }
  };
  auto promise = std::make_shared<Promise>();
  auto future = promise->promise.get_future();
  push(
      [&session, promise, feeds = std::move(feeds), outputs = std::move(outputs)] {
        promise->kept = true;
        try {
          promise->promise.set_value(session.run(feeds, outputs));
        } catch (...) {
          promise->promise.set_exception(std::current_exception());
          throw;
        }
      },
      reads, writes, priority);
  return future;
}

void Engine::wait_for(const Variable& variable) {
  if (!variable.state_ || variable.state_->engine != impl_.get())
    throw Error(ErrorCode::invalid_argument, "the variable belongs to another engine");
  std::unique_lock lock(impl_->mutex);
  Variable::State& state = *variable.state_;
  uint64_t last = 0;
  for (const auto& access : state.accesses)
    if (access.write) last = std::max(last, access.operation->number);
  impl_->ended.wait(lock, [&] {
    return std::none_of(state.accesses.begin(), state.accesses.end(),
                        [&](const auto& access) { return access.write && access.operation->number <= last; });
  });
  std::exception_ptr error = std::exchange(state.error, nullptr);
  lock.unlock();
  if (error) std::rethrow_exception(error);
}

void Engine::wait_all() {
  std::unique_lock lock(impl_->mutex);
  impl_->ended.wait(lock, [&] { return impl_->pending == 0; });
  std::exception_ptr first;
  for (const auto& weak : impl_->failed) {
    auto state = weak.lock();
    if (!state || !state->error) continue;
    if (!first) first = state->error;
    state->error = nullptr;
  }
  impl_->failed.clear();
  std::exception_ptr unowned = std::exchange(impl_->unowned, nullptr);
  if (!first) first = unowned;
  lock.unlock();
  if (first) std::rethrow_exception(first);
}

size_t Engine::num_pending() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->pending;
}

}  // namespace treadle
