#include "device/sim/sim_device.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/checked.h"
#include "core/base/futex.h"
#include "core/values/allocation.h"
#include "device/sim/engine.h"
#include "treadle/error.h"
#include "treadle/out_of_memory.h"

namespace treadle {
namespace {

// True on threads of streams. If such a thread drops the last reference to memory, all earlier work of the stream is done.
thread_local bool on_stream_thread = false;

// The state of one recording of an event. While streams still wait for it, the event may be recorded again, with a new state.
struct Signal {
  AccessChecker::Clock clock;
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;

  void set() {
    std::lock_guard lock(mutex);
    done = true;
    changed.notify_all();
  }
  void await() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done; });
  }
  bool is_set() {
    std::lock_guard lock(mutex);
    return done;
  }
};

class SimEvent final : public Event {
 public:
  explicit SimEvent(std::shared_ptr<AccessChecker> checker) : checker_(std::move(checker)) {}

  bool complete() const override {
    auto last = signal();
    if (last && !last->is_set()) return false;
    if (last) checker_->join(AccessChecker::kHost, last->clock);
    return true;
  }
  void synchronize() const override {
    auto last = signal();
    if (!last) return;
    last->await();
    checker_->join(AccessChecker::kHost, last->clock);
  }
  void set_signal(std::shared_ptr<Signal> signal) {
    std::lock_guard lock(mutex_);
    signal_ = std::move(signal);
  }
  std::shared_ptr<Signal> signal() const {
    std::lock_guard lock(mutex_);
    return signal_;
  }

 private:
  std::shared_ptr<AccessChecker> checker_;
  mutable std::mutex mutex_;
  std::shared_ptr<Signal> signal_;
};

int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// A piece of work whose begin and end a stream measures.
struct TimedPiece {
  int64_t begin_ns = 0, end_ns = 0;  // 0: not measured yet
  Stream::Told told;
};

class SimStream final : public Stream {
 public:
  /// @param engine  the device's engine, which outlives the stream; null: streams compute concurrently
  SimStream(std::shared_ptr<SimDevice> device, std::shared_ptr<AccessChecker> checker, std::string_view name, uint64_t seed,
            const SimOptions& options, SimEngine* engine)
      : device_(std::move(device)),
        checker_(std::move(checker)),
        timeline_(checker_->add_timeline(std::string(name))),
        max_delay_us_(options.max_delay_us),
        bus_bytes_per_second_(options.bus_bytes_per_second),
        engine_(engine),
        engine_pace_(options.engine_pace),
        random_(seed),
        thread_([this] { loop(); }) {}

  ~SimStream() override {
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
      paused_ = false;
    }
    changed_.notify_all();
    thread_.join();
    checker_->remove_timeline(timeline_);
  }

  Device& device() const override { return *device_; }

  void enqueue(Work work, std::string_view name) override {
    if (recorded_) recorded_->parts.push_back({std::exchange(checks_, {}), work, std::string(name)});
    if (engine_) {
      auto* shortest =
          engine_pace_ > 1 ? &shortest_.try_emplace(std::string(name), std::chrono::nanoseconds::max()).first->second : nullptr;
      work = [engine = engine_, check = gives_way_, pace = engine_pace_, shortest, inner = std::move(work)] {
        SimEngine::Occupation occupation(*engine, check);
        inner();
        if (shortest) occupation.keep(pace, *shortest);
      };
    }
    issue(std::move(work));
  }

  void copy(void* dst, const void* src, size_t size_bytes, CopyKind kind) override {
    cannot_serve_again();
    if (kind != CopyKind::host_to_device || checker_->has_memory(src)) check(src, size_bytes, Access::read, "copy");
    if (kind != CopyKind::device_to_host || checker_->has_memory(dst)) check(dst, size_bytes, Access::write, "copy");
    issue([=] {
      if (size_bytes > 0) std::memmove(dst, src, size_bytes);
    });
  }

  void transfer(size_t size_bytes) {
    if (bus_bytes_per_second_ <= 0) return issue([] {});
    const auto time = std::chrono::nanoseconds(static_cast<int64_t>(1e9 * static_cast<double>(size_bytes) / bus_bytes_per_second_));
    // Simulates a transfer over a bus. A bus uses no CPU core, so the thread sleeps. At the end it spins, because sleeping takes some
    // microseconds longer than requested.
    issue([time] {
      const auto end = std::chrono::steady_clock::now() + time;
      constexpr auto kOversleep = std::chrono::microseconds(20);
      if (time > kOversleep) std::this_thread::sleep_for(time - kOversleep);
      while (std::chrono::steady_clock::now() < end) cpu_relax();
    });
  }

  void record(Event& event) override {
    cannot_serve_again();
    auto* own = dynamic_cast<SimEvent*>(&event);
    if (!own) throw Error(ErrorCode::invalid_argument, "a stream of a simulated device records events of such devices only");
    auto signal = std::make_shared<Signal>();
    signal->clock = checker_->now(timeline_);
    push([signal] { signal->set(); }, Kind::control);
    own->set_signal(std::move(signal));  // last, since waiting for a signal that was not enqueued would never end
  }

  void wait(const std::shared_ptr<Event>& event) override {
    cannot_serve_again();
    if (auto* own = dynamic_cast<SimEvent*>(event.get())) {
      auto signal = own->signal();
      if (!signal) throw Error(ErrorCode::invalid_argument, "a stream waits for an event that was never recorded");
      checker_->join(timeline_, signal->clock);
      push([signal] { signal->await(); }, Kind::control);
    } else {
      push([event] { event->synchronize(); }, Kind::control);
    }
  }

  void set_gives_way(std::function<void()> check) { gives_way_ = std::move(check); }

  void synchronize() override {
    std::exception_ptr error;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return queue_.empty() && !busy_; });
      error = std::exchange(error_, nullptr);
    }
    checker_->join_host(timeline_);
    if (error) std::rethrow_exception(error);
    checker_->report_pending();
  }

  void begin_timed() override {
    (is_in_work() ? inner_ : outer_) = std::make_shared<TimedPiece>();
    if (is_in_work()) inner_->begin_ns = steady_ns();
  }
  void end_timed(Told told) override {
    if (is_in_work()) {
      inner_->end_ns = steady_ns();
      inner_->told = std::move(told);
      ended_.push_back(std::move(inner_));
      return;
    }
    issue([piece = std::exchange(outer_, nullptr), told = std::move(told)] {
      const int64_t now = steady_ns();
      told(piece->begin_ns == 0 ? now : piece->begin_ns, piece->end_ns == 0 ? now : piece->end_ns);
    });
  }

  void check(const void* data, size_t size_bytes, Access access, std::string_view name) {
    checker_->check(timeline_, data, size_bytes, access, name);
    if (recorded_) checks_.push_back({data, size_bytes, access, std::string(name)});
  }

  void begin_recorded() override { recorded_ = std::make_unique<Recorded>(); }
  std::unique_ptr<RecordedWork> end_recorded() override {
    checks_.clear();
    std::unique_ptr<Recorded> recorded = std::move(recorded_);
    return recorded && recorded->serves_again ? std::move(recorded) : nullptr;
  }
  bool submit_again(RecordedWork& work) override {
    for (const Recorded::Part& part : static_cast<Recorded&>(work).parts) {
      for (const Recorded::Check& c : part.checks) check(c.data, c.size_bytes, c.access, c.name);
      enqueue(part.work, part.name);
    }
    return true;
  }

  void set_paused(bool paused) {
    {
      std::lock_guard lock(mutex_);
      paused_ = paused;
    }
    changed_.notify_all();
  }

 private:
  enum class Kind : uint8_t { work, control };  // control entries run even after an error, since threads wait for them
  struct Entry {
    Work work;
    Kind kind;
  };
  struct Recorded final : RecordedWork {
    struct Check {
      const void* data;
      size_t size_bytes;
      Access access;
      std::string name;
    };
    struct Part {
      std::vector<Check> checks;
      Work work;
      std::string name;
    };
    std::vector<Part> parts;
    bool serves_again = true;
  };

  void cannot_serve_again() {
    if (recorded_) recorded_->serves_again = false;
  }

  bool is_in_work() const { return std::this_thread::get_id() == thread_.get_id(); }

  void issue(Work work) {
    checker_->issue(timeline_);
    if (outer_)
      work = [piece = outer_, inner = std::move(work)] {
        if (piece->begin_ns == 0) piece->begin_ns = steady_ns();
        inner();
        piece->end_ns = steady_ns();
      };
    push(std::move(work), Kind::work);
  }

  void push(Work work, Kind kind) {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back({std::move(work), kind});
    }
    changed_.notify_all();
  }

  void loop() {
    on_stream_thread = true;
    prctl(PR_SET_TIMERSLACK, 1);  // lets sleeps end within 1 ns of the requested time; the default is 50 us
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return (!queue_.empty() && !paused_) || (queue_.empty() && closing_); });
      if (queue_.empty()) return;
      Entry entry = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
      bool skip = error_ && entry.kind == Kind::work;
      lock.unlock();
      std::exception_ptr error;
      if (!skip) error = execute(entry);
      entry.work = nullptr;  // destroys captured objects before other threads see that the work is done
      lock.lock();
      busy_ = false;
      if (error && !error_) error_ = error;
      if (queue_.empty()) changed_.notify_all();
    }
  }

  std::exception_ptr execute(const Entry& entry) {
    try {
      if (max_delay_us_ > 0) std::this_thread::sleep_for(std::chrono::microseconds(random_() % (static_cast<uint64_t>(max_delay_us_) + 1)));
      entry.work();
      // Sets the end of the last piece again, because a shared engine may have kept the work longer than the host computed.
      if (!ended_.empty()) ended_.back()->end_ns = steady_ns();
      for (const auto& piece : std::exchange(ended_, {})) piece->told(piece->begin_ns, piece->end_ns);
    } catch (...) {
      ended_.clear();
      return std::current_exception();
    }
    return nullptr;
  }

  std::shared_ptr<SimDevice> device_;
  std::shared_ptr<AccessChecker> checker_;
  int timeline_;
  int max_delay_us_;
  double bus_bytes_per_second_;
  SimEngine* engine_;
  double engine_pace_;
  std::map<std::string, std::chrono::nanoseconds> shortest_;  // shortest times, by name of work; only for the stream's thread
  std::function<void()> gives_way_;
  std::unique_ptr<Recorded> recorded_;              // not null between begin_recorded() and end_recorded()
  std::vector<Recorded::Check> checks_;             // accesses since the last piece of recorded work
  std::shared_ptr<TimedPiece> outer_;               // timed piece that is being enqueued; null: none
  std::shared_ptr<TimedPiece> inner_;               // timed piece within running work; used by the stream's thread, as is `ended_`
  std::vector<std::shared_ptr<TimedPiece>> ended_;  // timed pieces that have ended within the running work
  std::mt19937_64 random_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> queue_;
  bool busy_ = false, paused_ = false, closing_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // the last member, because the thread uses all others
};

SimStream& own(Stream& stream) { return dynamic_cast<SimStream&>(stream); }

class SimDeviceImpl final : public SimDevice, private Bus, private SharedEngine, private AccessChecks {
 public:
  explicit SimDeviceImpl(const SimOptions& options)
      : SimDevice(options.name), options_(options), checker_(options.checker ? options.checker : std::make_shared<AccessChecker>()) {}

  ~SimDeviceImpl() override {
    for (const Block& block : quarantine_) block.give_back();
  }

  Bus* bus() noexcept override { return this; }
  SharedEngine* shared_engine() noexcept override { return options_.shared_engine ? this : nullptr; }
  AccessChecks* access_checks() noexcept override { return this; }

  std::shared_ptr<Storage> allocate_anywhere(size_t size_bytes) override {
    Block block = take(size_bytes);
    if (!block.data) throw OutOfMemory(name() + ": the host cannot allocate " + std::to_string(size_bytes) + " bytes");
    return wrap(block, size_bytes);
  }

  bool reserve(void*, size_t size_bytes) override {
    size_t before = allocated_.load();
    do {
      if (size_bytes > options_.memory_bytes || before > options_.memory_bytes - size_bytes) return false;
    } while (!allocated_.compare_exchange_weak(before, before + size_bytes));
    note_peak(before + size_bytes);
    return true;
  }
  void unreserve(void*, size_t size_bytes) noexcept override { allocated_ -= size_bytes; }
  // The device's memory is the host's. So a move only takes time, and none if the host has the contents already. The checker takes it for a
  // write: contents are not where other work expects them until the move is done.
  void move(Stream& stream, void* data, size_t size_bytes, Move where) override {
    if (where == Move::back_to_host) return;
    if (data) own(stream).check(data, size_bytes, Access::write, "move");
    own(stream).transfer(size_bytes);
  }
  void use_over_bus(Stream& stream, size_t size_bytes) override { own(stream).transfer(size_bytes); }
  void set_gives_way(Stream& stream, std::function<void()> check) override { own(stream).set_gives_way(std::move(check)); }
  void check(Stream& stream, const void* data, size_t size_bytes, Access access, std::string_view name) override {
    own(stream).check(data, size_bytes, access, name);
  }

  // Discards only whole pages. Parts of pages at the ends of the range keep their contents.
  void discard(void* data, size_t size_bytes) override {
    static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto from = reinterpret_cast<uintptr_t>(data);
    const uintptr_t first = (from + page - 1) / page * page, last = (from + size_bytes) / page * page;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  }

  std::shared_ptr<Storage> allocate(size_t size_bytes) override {
    const size_t rounded = align_up(std::max<size_t>(size_bytes, 1), Storage::kAlignment);
    const size_t before = allocated_.fetch_add(rounded);
    Block block;
    try {
      if (rounded >= size_bytes && before + rounded <= options_.memory_bytes) block = take(size_bytes);
    } catch (...) {
      allocated_ -= rounded;
      throw;
    }
    if (!block.data) {
      allocated_ -= rounded;
      throw OutOfMemory(name() + " cannot allocate " + std::to_string(size_bytes) + " bytes: " + std::to_string(before) + " of " +
                        std::to_string(options_.memory_bytes) + " are in use");
    }
    note_peak(before + rounded);
    block.reserved_bytes = rounded;
    return wrap(block, size_bytes);
  }

  std::unique_ptr<Stream> create_stream(std::string_view name) override {
    auto self = std::static_pointer_cast<SimDevice>(shared_from_this());
    uint64_t seed = options_.seed * 0x9E3779B97F4A7C15U + num_streams_.fetch_add(1);
    return std::make_unique<SimStream>(std::move(self), checker_, name, seed, options_, options_.shared_engine ? &engine_ : nullptr);
  }
  std::shared_ptr<Event> create_event() override { return std::make_shared<SimEvent>(checker_); }
  bool host_accessible() const noexcept override { return options_.host_accessible; }
  bool memory_is_hosts() const noexcept override { return true; }
  bool tells_times() const noexcept override { return true; }
  bool records_work() const noexcept override { return true; }
  bool reaches(const Device& other) const noexcept override { return dynamic_cast<const SimDevice*>(&other) != nullptr; }
  std::shared_ptr<const void> watch(const void* data, size_t size_bytes) override {
    if (size_bytes == 0 || checker_->has_memory(data)) return nullptr;
    checker_->add_memory(data, size_bytes);
    return {data, [checker = checker_](const void* watched) { checker->remove_memory(watched); }};
  }

  size_t allocated_bytes() const override { return allocated_; }
  std::optional<size_t> bytes_in_use() const override { return allocated_; }
  uint64_t engine_wait_ns() const override { return engine_.waited_ns(); }
  size_t peak_bytes() const override { return peak_; }
  const std::shared_ptr<AccessChecker>& checker() const override { return checker_; }
  void check_host_access(const void* data, size_t size_bytes, Access access, std::string_view name) override {
    checker_->check(AccessChecker::kHost, data, size_bytes, access, name);
  }
  void pause(Stream& stream) override { own(stream).set_paused(true); }
  void resume(Stream& stream) override { own(stream).set_paused(false); }

 private:
  void note_peak(size_t now) {
    size_t seen = peak_.load();
    while (seen < now && !peak_.compare_exchange_weak(seen, now)) {
    }
  }

  /// A block of host memory. Its allocator is that of the AllocationScope in which the block was requested.
  struct Block {
    void* data = nullptr;
    size_t size_bytes = 0;
    size_t reserved_bytes = 0;  // bytes of the device's memory that the block takes
    std::shared_ptr<Allocator> allocator;
    MemoryClass memory_class = MemoryClass::other;
    void give_back() const { allocator->free(data, size_bytes, memory_class); }
  };

  static Block take(size_t size_bytes) {
    Block block;
    block.size_bytes = align_up(std::max<size_t>(size_bytes, 1), Storage::kAlignment);
    const AllocationContext* context = AllocationScope::current();
    const bool is_own = context && context->allocator;
    block.allocator = is_own ? context->allocator : plain_allocator();
    block.memory_class = AllocationScope::current_class();
    if (block.size_bytes >= size_bytes) block.data = block.allocator->allocate(block.size_bytes, block.memory_class);
    if (block.data && !is_own) std::memset(block.data, kNewMemory, block.size_bytes);
    return block;
  }

  std::shared_ptr<Storage> wrap(const Block& block, size_t size_bytes) {
    try {
      checker_->add_memory(block.data, block.size_bytes);
      auto self = std::static_pointer_cast<SimDeviceImpl>(shared_from_this());
      auto release = [self, block] { self->release(block); };
      return options_.host_accessible ? Storage::borrow(block.data, size_bytes, release)
                                      : Storage::of_device(self, block.data, size_bytes, release);
    } catch (...) {
      checker_->remove_memory(block.data, /*check=*/false);
      allocated_ -= block.reserved_bytes;
      block.give_back();
      throw;
    }
  }

  void release(const Block& block) {
    allocated_ -= block.reserved_bytes;
    if (checker_->remove_memory(block.data, !on_stream_thread)) {
      std::memset(block.data, kFreedMemory, block.size_bytes);
      block.give_back();
    } else {  // running work may still use the block: keeps it, so that this error is reported instead of crashing
      std::lock_guard lock(mutex_);
      quarantine_.push_back(block);
    }
  }

  SimOptions options_;
  std::shared_ptr<AccessChecker> checker_;
  std::atomic<size_t> allocated_{0}, peak_{0};
  std::atomic<uint64_t> num_streams_{0};
  SimEngine engine_;
  std::mutex mutex_;
  std::vector<Block> quarantine_;
};

}  // namespace

std::shared_ptr<SimDevice> SimDevice::create(const SimOptions& options) { return std::make_shared<SimDeviceImpl>(options); }

std::shared_ptr<SimDevice> SimDevice::shared(const std::string& name, const SimOptions& options) {
  static std::mutex& mutex = *new std::mutex;
  static auto& devices = *new std::map<std::string, std::weak_ptr<SimDevice>>;
  static const auto& checker = *new std::shared_ptr<AccessChecker>(std::make_shared<AccessChecker>());
  std::lock_guard lock(mutex);
  std::weak_ptr<SimDevice>& known = devices[name];
  if (auto device = known.lock()) return device;
  SimOptions named = options;
  named.name = "sim:" + name;  // the name that sessions use
  if (!named.checker) named.checker = checker;
  auto device = create(named);
  known = device;
  return device;
}

}  // namespace treadle
