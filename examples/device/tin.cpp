// A plugin with a device named "tin". It needs only the header treadle/plugin.h. docs/add-a-device.md explains the callbacks.
//
//     c++ -std=c++17 -O2 -shared -fPIC -I include examples/device/tin.cpp -o libtin.so -pthread
//
// The device's memory is host memory, given out under addresses that are not mapped: code that reads or writes there without the device's
// functions crashes. A stream is a thread. The device computes MatMul, Add, Relu and Conv of float32 in simple loops; the host computes all
// other nodes.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "treadle/plugin.h"

namespace {

std::atomic<int64_t> launches{0}, allocated_bytes{0}, peak_bytes{0};
std::atomic<int64_t> copied_bytes[3], moved_bytes[3];  // by treadle/plugin.h's kind of copy

// Memory

constexpr uintptr_t kShift = uintptr_t{1} << 47;  // nothing is mapped at addresses shifted by this

void* to_device(void* host) { return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(host) + kShift); }
template <typename T>
T* to_host(T* device) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(device) - kShift);
}

// One device for each name that a session gives, such as "tin" or "tin:1". The session's config entry "tin.memory" is its size in bytes.
struct Tin {
  std::string name;
  int64_t memory_bytes = INT64_MAX;
  std::atomic<int64_t> used_bytes{0};
};

void* create_device(void*, const treadle_host* host, const char* name, const treadle_config_entry* entries, size_t num_entries) {
  auto tin = std::make_unique<Tin>();
  tin->name = name;
  for (const treadle_config_entry* entry = entries; entry != entries + num_entries; ++entry) {
    if (std::strcmp(entry->key, "tin.memory") != 0) continue;
    tin->memory_bytes = std::atoll(entry->value);
    if (tin->memory_bytes <= 0) return host->fail("tin.memory is a number of bytes above 0"), nullptr;
  }
  return tin.release();
}

void destroy_device(void*, void* device) { delete static_cast<Tin*>(device); }

// allocate_anywhere() gives addresses, and reserve() room in the device's memory. Values for which there is no room stay in host memory.
void* allocate_anywhere(void*, size_t size_bytes) {
  void* memory = std::aligned_alloc(64, (size_bytes + 63) / 64 * 64);
  if (!memory) return nullptr;
  allocated_bytes += static_cast<int64_t>(size_bytes);
  return to_device(memory);
}

void free_anywhere(void*, void* memory, size_t size_bytes) {
  allocated_bytes -= static_cast<int64_t>(size_bytes);
  std::free(to_host(memory));
}

int reserve(void* device, size_t size_bytes) {
  Tin& tin = *static_cast<Tin*>(device);
  const auto asked = static_cast<int64_t>(size_bytes);
  int64_t used = tin.used_bytes;
  do {
    if (asked > tin.memory_bytes - used) return 0;
  } while (!tin.used_bytes.compare_exchange_weak(used, used + asked));
  for (int64_t peak = peak_bytes; peak < used + asked && !peak_bytes.compare_exchange_weak(peak, used + asked);) {
  }
  return 1;
}

void unreserve(void* device, size_t size_bytes) { static_cast<Tin*>(device)->used_bytes -= static_cast<int64_t>(size_bytes); }

// Fills the discarded memory with NaN, so that code which still reads it gives wrong results.
void discard(void*, void* data, size_t size_bytes) { std::memset(to_host(data), 0xFF, size_bytes); }

// Moves nothing, because the device's memory is host memory.
int move(void*, void*, void*, size_t size_bytes, int32_t kind) {
  moved_bytes[kind] += static_cast<int64_t>(size_bytes);
  return 1;
}

void* allocate(void* device, size_t size_bytes) {
  if (!reserve(device, size_bytes)) return nullptr;
  void* memory = allocate_anywhere(device, size_bytes);
  if (!memory) unreserve(device, size_bytes);
  return memory;
}

void free_memory(void* device, void* memory, size_t size_bytes) {
  unreserve(device, size_bytes);
  free_anywhere(device, memory, size_bytes);
}

// Events and streams

struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, done = 0;  // records that were enqueued, and that have been reached
  int64_t reached_ns = 0;           // when the last of them was

  uint64_t record() {
    std::lock_guard<std::mutex> lock(mutex);
    return ++recorded;
  }
  uint64_t last() {
    std::lock_guard<std::mutex> lock(mutex);
    return recorded;
  }
  void reach(uint64_t number) {
    std::lock_guard<std::mutex> lock(mutex);
    done = std::max(done, number);
    reached_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
    changed.notify_all();
  }
  void await(uint64_t number) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return done >= number; });
  }
};

class Stream {
 public:
  Stream() : thread_([this] { work(); }) {}
  ~Stream() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      closing_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }
  void enqueue(std::function<void()> task) {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }
  void synchronize() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return tasks_.empty() && !busy_; });
  }

 private:
  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !tasks_.empty() || closing_; });
      if (tasks_.empty()) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      busy_ = true;
      lock.unlock();
      task();
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool busy_ = false, closing_ = false;
  std::thread thread_;  // the last member, because it uses the others
};

int copy(void*, void* stream, void* to, const void* from, size_t size_bytes, int32_t kind) {
  copied_bytes[kind] += static_cast<int64_t>(size_bytes);
  if (kind != 1) to = to_host(to);
  if (kind != 0) from = to_host(from);
  static_cast<Stream*>(stream)->enqueue([=] { std::memcpy(to, from, size_bytes); });
  return 1;
}

// Kernels. They copy shapes and attributes, because their work runs after the call.

struct View {
  explicit View(const treadle_tensor_view& view)
      : dims(view.dims, view.dims + view.rank), data(static_cast<float*>(to_host(const_cast<void*>(view.data)))) {}
  int64_t extent(size_t axis) const { return dims[axis]; }
  int64_t count() const {
    int64_t n = 1;
    for (int64_t extent : dims) n *= extent;
    return n;
  }
  /// Returns, for each axis of `shape`, to which this tensor is broadcast, the distance in elements between two indices; 0 if the tensor is
  /// repeated along the axis.
  std::vector<int64_t> steps_in(const std::vector<int64_t>& shape) const {
    std::vector<int64_t> steps(shape.size(), 0);
    int64_t step = 1;
    for (size_t k = 0; k < dims.size(); ++k) {
      const size_t own = dims.size() - 1 - k, axis = shape.size() - 1 - k;
      if (dims[own] != 1) steps[axis] = step;
      step *= dims[own];
    }
    return steps;
  }
  std::vector<int64_t> dims;
  float* data;
};

template <typename Work>
int enqueue(void* stream, Work work) {
  static_cast<Stream*>(stream)->enqueue([work = std::move(work)] {
    work();
    ++launches;
  });
  return 1;
}

/// Calls fn(i, offset in a, offset in b) for every element i of `shape`, in order.
template <typename Fn>
void for_broadcast(const std::vector<int64_t>& shape, const std::vector<int64_t>& a, const std::vector<int64_t>& b, Fn fn) {
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, at_a = 0, at_b = 0;
    for (size_t axis = shape.size(); axis-- > 0;) {
      at_a += rest % shape[axis] * a[axis];
      at_b += rest % shape[axis] * b[axis];
      rest /= shape[axis];
    }
    fn(i, at_a, at_b);
  }
}

int launch_add(void*, void* stream, const treadle_host*, const treadle_device_call* call) {
  const View a(call->inputs[0]), b(call->inputs[1]), y(call->outputs[0]);
  return enqueue(stream, [=] {
    for_broadcast(y.dims, a.steps_in(y.dims), b.steps_in(y.dims),
                  [&](int64_t i, int64_t at_a, int64_t at_b) { y.data[i] = a.data[at_a] + b.data[at_b]; });
  });
}

int launch_relu(void*, void* stream, const treadle_host*, const treadle_device_call* call) {
  const View x(call->inputs[0]), y(call->outputs[0]);
  return enqueue(stream, [=] {
    for (int64_t i = 0, n = x.count(); i < n; ++i) y.data[i] = x.data[i] < 0 ? 0 : x.data[i];  // keeps NaN
  });
}

int takes_matmul(void*, const treadle_host* host, const treadle_node* node) {
  treadle_value_type a, b;
  host->node_input_type(node, 0, &a);
  host->node_input_type(node, 1, &b);
  return a.rank >= 2 && b.rank >= 2;  // the host multiplies vectors
}

int launch_matmul(void*, void* stream, const treadle_host*, const treadle_device_call* call) {
  const View a(call->inputs[0]), b(call->inputs[1]), y(call->outputs[0]);
  return enqueue(stream, [=] {
    const size_t rank = y.dims.size();
    const int64_t M = y.extent(rank - 2), N = y.extent(rank - 1), K = a.dims.back();
    // Computes one product for each position of the batch axes, along which A or B may be broadcast.
    std::vector<int64_t> batch(y.dims.begin(), y.dims.end() - 2), steps_a = a.steps_in(y.dims), steps_b = b.steps_in(y.dims);
    steps_a.resize(rank - 2), steps_b.resize(rank - 2);
    for_broadcast(batch, steps_a, steps_b, [&](int64_t i, int64_t at_a, int64_t at_b) {
      for (int64_t m = 0; m < M; ++m)
        for (int64_t n = 0; n < N; ++n) {
          float sum = 0;
          for (int64_t k = 0; k < K; ++k) sum += a.data[at_a + m * K + k] * b.data[at_b + k * N + n];
          y.data[(i * M + m) * N + n] = sum;
        }
    });
  });
}

std::vector<int64_t> ints(const treadle_host* host, const treadle_node* node, const char* name, std::vector<int64_t> otherwise) {
  const int64_t* data = nullptr;
  size_t count = 0;
  return host->node_attribute_ints(node, name, &data, &count) ? std::vector<int64_t>(data, data + count) : otherwise;
}

int takes_conv(void*, const treadle_host* host, const treadle_node* node) {
  treadle_value_type x;
  host->node_input_type(node, 0, &x);
  const char* text = nullptr;
  size_t length = 0;
  const bool pads_by_itself = host->node_attribute_string(node, "auto_pad", &text, &length) && std::string(text, length) != "NOTSET";
  return x.rank == 4 && !pads_by_itself;
}

int launch_conv(void*, void* stream, const treadle_host* host, const treadle_device_call* call) {
  const View x(call->inputs[0]), w(call->inputs[1]), y(call->outputs[0]);
  const float* bias = nullptr;
  if (call->num_inputs > 2 && call->inputs[2].dtype != 0) bias = View(call->inputs[2]).data;
  const auto strides = ints(host, call->node, "strides", {1, 1}), dilations = ints(host, call->node, "dilations", {1, 1}),
             pads = ints(host, call->node, "pads", {0, 0, 0, 0});
  int64_t groups = 1;
  host->node_attribute_int(call->node, "group", &groups);
  return enqueue(stream, [=] {
    const int64_t C = w.extent(1), filters = y.extent(1) / groups;
    for (int64_t n = 0; n < y.extent(0); ++n)
      for (int64_t f = 0; f < y.extent(1); ++f)
        for (int64_t row = 0; row < y.extent(2); ++row)
          for (int64_t column = 0; column < y.extent(3); ++column) {
            float sum = bias ? bias[f] : 0;
            for (int64_t c = 0; c < C; ++c)
              for (int64_t i = 0; i < w.extent(2); ++i)
                for (int64_t j = 0; j < w.extent(3); ++j) {
                  const int64_t from_row = row * strides[0] + i * dilations[0] - pads[0],
                                from_column = column * strides[1] + j * dilations[1] - pads[1];
                  if (from_row < 0 || from_row >= x.extent(2) || from_column < 0 || from_column >= x.extent(3)) continue;
                  const int64_t channel = f / filters * C + c;
                  sum += x.data[((n * x.extent(1) + channel) * x.extent(2) + from_row) * x.extent(3) + from_column] *
                         w.data[((f * C + c) * w.extent(2) + i) * w.extent(3) + j];
                }
            y.data[((n * y.extent(1) + f) * y.extent(2) + row) * y.extent(3) + column] = sum;
          }
  });
}

}  // namespace

extern "C" {

// For tests: counts over all devices. tin_peak_bytes() returns the most bytes that any device had reserved since the last such call.
__attribute__((visibility("default"))) int64_t tin_launches() { return launches; }
__attribute__((visibility("default"))) int64_t tin_allocated_bytes() { return allocated_bytes; }
__attribute__((visibility("default"))) int64_t tin_peak_bytes() { return peak_bytes.exchange(0); }
__attribute__((visibility("default"))) int64_t tin_copied_bytes(int32_t kind) { return copied_bytes[kind]; }
__attribute__((visibility("default"))) int64_t tin_moved_bytes(int32_t kind) { return moved_bytes[kind]; }

__attribute__((visibility("default"))) int treadle_plugin_main(const treadle_host* host) {
  if (host->version < 7) return host->fail("this plugin needs version 7 of treadle/plugin.h"), 0;
  static const treadle_device_kernel kernels[] = {
      {"MatMul", "", TREADLE_FLOAT32, takes_matmul, launch_matmul},
      {"Add", "", TREADLE_FLOAT32, nullptr, launch_add},
      {"Relu", "", TREADLE_FLOAT32, nullptr, launch_relu},
      {"Conv", "", TREADLE_FLOAT32, takes_conv, launch_conv},
  };
  treadle_device device{};
  device.size = sizeof(device);
  device.name = "tin";
  device.create_device = create_device;
  device.destroy_device = destroy_device;
  device.allocate = allocate;
  device.free = free_memory;
  device.allocate_anywhere = allocate_anywhere;
  device.free_anywhere = free_anywhere;
  device.reserve = reserve;
  device.unreserve = unreserve;
  device.discard = discard;
  device.move = move;
  device.create_stream = [](void*) -> void* { return new Stream; };
  device.destroy_stream = [](void*, void* stream) { delete static_cast<Stream*>(stream); };
  device.copy = copy;
  device.synchronize = [](void*, void* stream) { return static_cast<Stream*>(stream)->synchronize(), 1; };
  device.create_event = [](void*) -> void* { return new std::shared_ptr<Event>(std::make_shared<Event>()); };
  device.destroy_event = [](void*, void* event) { delete static_cast<std::shared_ptr<Event>*>(event); };
  device.record_event = [](void*, void* stream, void* event) {
    const auto kept = *static_cast<std::shared_ptr<Event>*>(event);  // the runtime may destroy its event before the stream gets there
    static_cast<Stream*>(stream)->enqueue([kept, number = kept->record()] { kept->reach(number); });
    return 1;
  };
  device.stream_wait = [](void*, void* stream, void* event) {
    const auto kept = *static_cast<std::shared_ptr<Event>*>(event);
    static_cast<Stream*>(stream)->enqueue([kept, number = kept->last()] { kept->await(number); });
    return 1;
  };
  device.event_complete = [](void*, void* event) {
    Event& of = **static_cast<std::shared_ptr<Event>*>(event);
    std::lock_guard<std::mutex> lock(of.mutex);
    return of.done >= of.recorded ? 1 : 0;
  };
  device.wait_event = [](void*, void* event) {
    Event& of = **static_cast<std::shared_ptr<Event>*>(event);
    of.await(of.last());
  };
  // A device with a clock of its own converts its times to the host's steady clock.
  device.event_time = [](void*, void* event) {
    Event& of = **static_cast<std::shared_ptr<Event>*>(event);
    std::lock_guard<std::mutex> lock(of.mutex);
    return of.reached_ns;
  };
  device.kernels = kernels;
  device.num_kernels = sizeof(kernels) / sizeof(kernels[0]);
  return host->register_device(&device);
}

}  // extern "C"
