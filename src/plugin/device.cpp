// Devices of plugins: implements the library's classes Device, Stream and Event by calling functions of a plugin, and implements kernels by
// calling the plugin's kernels.
#include "plugin/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "core/devices/device_registry.h"
#include "graph/infer.h"
#include "graph/kernel_table.h"
#include "graph/op_def.h"
#include "plugin/host.h"
#include "treadle/error.h"
#include "treadle/out_of_memory.h"

namespace treadle::plugin {
namespace {

constexpr size_t kMaxKernelOperands = 8;

/// A copy of the struct that a plugin registered, with its strings.
struct Registration {
  std::string name;
  treadle_device callbacks;
  struct Kernel {
    std::string op_type, domain;
    treadle_device_kernel callbacks;
  };
  std::vector<Kernel> kernels;
};
using RegistrationPtr = std::shared_ptr<const Registration>;

/// A device of a registered type, with the plugin's handle for the device.
class Instance {
 public:
  Instance(RegistrationPtr of, const DeviceRequest& request) : of_(std::move(of)), user_(of_->callbacks.user) {
    if (!of_->callbacks.create_device) return;
    std::vector<treadle_config_entry> entries;
    for (const auto& [key, value] : request.config) entries.push_back({key.c_str(), value.c_str()});
    clear_failure();
    user_ = of_->callbacks.create_device(of_->callbacks.user, &host(), request.name.c_str(), entries.data(), entries.size());
    if (user_) return;
    const std::string text = take_failure();
    throw Error(ErrorCode::invalid_argument, fmt::format("there is no device {}{}{}", request.name, text.empty() ? "" : ": ", text));
  }
  ~Instance() {
    if (of_->callbacks.destroy_device) of_->callbacks.destroy_device(of_->callbacks.user, user_);
  }
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  const Registration& registration() const { return *of_; }
  const treadle_device* operator->() const { return &of_->callbacks; }
  void* user() const { return user_; }

 private:
  const RegistrationPtr of_;
  void* user_;
};
using InstancePtr = std::shared_ptr<const Instance>;

[[noreturn]] void throw_failure(const Registration& of, const char* what, ErrorCode code = ErrorCode::internal) {
  const std::string text = take_failure();
  throw Error(code, fmt::format("the device {} failed to {}{}{}", of.name, what, text.empty() ? "" : ": ", text));
}

// Calls a plugin's function, which returns 0 on failure. Throws the plugin's error in this case.
template <typename Call>
void check(const Registration& of, const char* what, Call&& call) {
  clear_failure();
  if (!call()) throw_failure(of, what);
}

class PluginEvent final : public Event {
 public:
  explicit PluginEvent(InstancePtr of) : of_(std::move(of)) {
    clear_failure();
    handle_ = (*of_)->create_event(of_->user());
    if (!handle_) throw_failure(of_->registration(), "make an event", ErrorCode::resource_exhausted);
  }
  ~PluginEvent() override { (*of_)->destroy_event(of_->user(), handle_); }
  bool complete() const override { return (*of_)->event_complete(of_->user(), handle_) != 0; }
  void synchronize() const override { (*of_)->wait_event(of_->user(), handle_); }
  void* handle() const { return handle_; }
  const Registration& registration() const { return of_->registration(); }

 private:
  const InstancePtr of_;
  void* handle_ = nullptr;
};

// The device and stream to which this thread is enqueueing work.
struct Current {
  void *user = nullptr, *stream = nullptr;
};
thread_local Current current;

class PluginStream final : public Stream {
 public:
  PluginStream(std::shared_ptr<Device> device, InstancePtr of) : device_(std::move(device)), of_(std::move(of)) {
    clear_failure();
    handle_ = (*of_)->create_stream(of_->user());
    if (!handle_) throw_failure(of_->registration(), "make a stream", ErrorCode::resource_exhausted);
  }
  ~PluginStream() override {
    (*of_)->synchronize(of_->user(), handle_);
    done_.clear();
    (*of_)->destroy_stream(of_->user(), handle_);
  }
  Device& device() const override { return *device_; }

  // Runs work that calls the plugin's kernels, which enqueue their own work. The Work object is kept until the stream was synchronized.
  void enqueue(Work work, std::string_view) override {
    const Current before = std::exchange(current, {of_->user(), handle_});
    try {
      work();
    } catch (...) {
      current = before;
      throw;
    }
    current = before;
    kept_.push_back(std::move(work));
  }
  // Within memory limits a stream is not synchronised for many steps, so its events tell which work can be done.
  void enqueue_release(Work work) override {
    while (!done_.empty() && done_.front().first && done_.front().first->complete()) {
      const Work next = std::move(done_.front().second);
      done_.pop_front();
      next();
    }
    done_.emplace_back((*of_)->move ? record_time() : nullptr, std::move(work));
  }
  void copy(void* dst, const void* src, size_t size_bytes, CopyKind kind) override {
    if (size_bytes == 0) return;
    check(of_->registration(), "copy",
          [&] { return (*of_)->copy(of_->user(), handle_, dst, src, size_bytes, static_cast<int32_t>(kind)); });
  }
  void move(void* data, size_t size_bytes, Bus::Move where) {
    check(of_->registration(), "move memory",
          [&] { return (*of_)->move(of_->user(), handle_, data, size_bytes, static_cast<int32_t>(where)); });
  }
  void record(Event& event) override {
    auto* own = dynamic_cast<PluginEvent*>(&event);
    if (!own || &own->registration() != &of_->registration())
      throw Error(ErrorCode::invalid_argument, fmt::format("a stream of {} records events of such devices only", of_->registration().name));
    check(of_->registration(), "record an event", [&] { return (*of_)->record_event(of_->user(), handle_, own->handle()); });
  }
  // If the event belongs to another kind of device, the host waits for the event before it enqueues anything else.
  void wait(const std::shared_ptr<Event>& event) override {
    auto* own = dynamic_cast<PluginEvent*>(event.get());
    if (!own || &own->registration() != &of_->registration()) return event->synchronize();
    check(of_->registration(), "wait for an event", [&] { return (*of_)->stream_wait(of_->user(), handle_, own->handle()); });
  }
  // The time of a piece of work is measured by one event before it and one after it.
  void begin_timed() override { began_ = record_time(); }
  void end_timed(Told told) override {
    timed_.push_back([of = of_, began = std::exchange(began_, nullptr), ended = record_time(), told = std::move(told)] {
      const int64_t from = (*of)->event_time(of->user(), began->handle()), until = (*of)->event_time(of->user(), ended->handle());
      if (from > 0 && until > 0) told(from, until);
    });
  }
  void synchronize() override {
    clear_failure();
    const int ok = (*of_)->synchronize(of_->user(), handle_);
    for (const auto& [event, work] : std::exchange(done_, {})) work();
    kept_.clear();
    for (const Work& tell : std::exchange(timed_, {}))
      if (ok) tell();
    if (!ok) throw_failure(of_->registration(), "end its work");
  }

 private:
  std::shared_ptr<PluginEvent> record_time() {
    auto event = std::make_shared<PluginEvent>(of_);
    record(*event);
    return event;
  }

  const std::shared_ptr<Device> device_;
  const InstancePtr of_;
  void* handle_ = nullptr;
  std::shared_ptr<PluginEvent> began_;  // event recorded at the beginning of the piece of work whose time is measured
  std::vector<Work> kept_;              // work in progress
  // Work to do when earlier work has ended, each with the event that tells so; null if only synchronize() does
  std::deque<std::pair<std::shared_ptr<PluginEvent>, Work>> done_;
  std::vector<Work> timed_;  // functions that report the times of pieces when their work is done
};

class PluginDevice final : public Device, private Bus {
 public:
  PluginDevice(std::string name, InstancePtr of) : Device(std::move(name)), of_(std::move(of)) {}

  std::shared_ptr<Storage> allocate(size_t size_bytes) override { return take(size_bytes, (*of_)->allocate, (*of_)->free); }
  std::unique_ptr<Stream> create_stream(std::string_view) override { return std::make_unique<PluginStream>(shared_from_this(), of_); }
  std::shared_ptr<Event> create_event() override { return std::make_shared<PluginEvent>(of_); }
  Bus* bus() noexcept override { return (*of_)->move ? this : nullptr; }
  bool host_accessible() const noexcept override { return false; }
  bool tells_times() const noexcept override { return (*of_)->event_time != nullptr; }
  bool calls_work_at_once() const noexcept override { return true; }
  bool reaches(const Device& other) const noexcept override {
    const auto* plugin = dynamic_cast<const PluginDevice*>(&other);
    return plugin && &plugin->of_->registration() == &of_->registration();
  }

 private:
  std::shared_ptr<Storage> allocate_anywhere(size_t size_bytes) override {
    return take(size_bytes, (*of_)->allocate_anywhere, (*of_)->free_anywhere);
  }
  bool reserve(void*, size_t size_bytes) override { return (*of_)->reserve(of_->user(), size_bytes) != 0; }
  void unreserve(void*, size_t size_bytes) noexcept override { (*of_)->unreserve(of_->user(), size_bytes); }
  void discard(void* data, size_t size_bytes) override { (*of_)->discard(of_->user(), data, size_bytes); }
  void move(Stream& stream, void* data, size_t size_bytes, Move where) override {
    if (size_bytes > 0) dynamic_cast<PluginStream&>(stream).move(data, size_bytes, where);
  }

  using Allocate = void* (*)(void* user, size_t size_bytes);
  using Free = void (*)(void* user, void* memory, size_t size_bytes);
  std::shared_ptr<Storage> take(size_t size_bytes, Allocate allocate, Free free) {
    const size_t asked = std::max<size_t>(size_bytes, 1);
    clear_failure();
    void* data = allocate(of_->user(), asked);
    if (!data) {
      const std::string text = take_failure();
      throw OutOfMemory(fmt::format("cannot allocate {} bytes on {}{}{}", size_bytes, name(), text.empty() ? "" : ": ", text));
    }
    auto release = [of = of_, self = shared_from_this(), data, asked, free] { free(of->user(), data, asked); };
    if (reinterpret_cast<uintptr_t>(data) % Storage::kAlignment != 0) {
      release();
      throw Error(ErrorCode::internal, fmt::format("memory of {} is not aligned to {} bytes", name(), Storage::kAlignment));
    }
    return Storage::of_device(shared_from_this(), data, size_bytes, release);
  }

  const InstancePtr of_;
};

/// The packed state of a node that is computed by a kernel of the plugin.
struct DeviceNode final : PackedState {
  DeviceNode(RegistrationPtr registration, const treadle_device_kernel& chosen, treadle_node view)
      : of(std::move(registration)), kernel(chosen), node(std::move(view)) {}
  const RegistrationPtr of;
  const treadle_device_kernel kernel;
  const treadle_node node;
};

struct LaunchKernel {
  struct Operand {
    int32_t dtype, rank;  // dtype 0 means that the operand is absent
    int64_t dims[TREADLE_PLUGIN_MAX_RANK];
  };
  int32_t num_inputs, num_outputs;
  Operand operands[kMaxKernelOperands];

  static LaunchKernel bind(BindContext& c) {
    LaunchKernel k{c.num_inputs(), c.num_outputs(), {}};
    for (int i = 0; i < k.num_inputs; ++i)
      if (c.has_input(i)) set(k.operands[i], c.dtype(i), c.shape(i));
    for (int i = 0; i < k.num_outputs; ++i)
      if (c.has_output(i)) set(k.operands[k.num_inputs + i], c.output_dtype(i), c.output_shape(i));
    return k;
  }
  void run(RunContext& c) const {
    const auto& node = c.packed<DeviceNode>();
    std::array<treadle_tensor_view, kMaxKernelOperands> views{};
    for (int i = 0; i < num_inputs + num_outputs; ++i)
      views[static_cast<size_t>(i)] = {operands[i].dtype, operands[i].rank, operands[i].dims,
                                       i < num_inputs ? c.in<void>(i) : c.out<void>(i - num_inputs)};
    const treadle_device_call call{.size = sizeof(treadle_device_call),
                                   .node = &node.node,
                                   .num_inputs = static_cast<size_t>(num_inputs),
                                   .num_outputs = static_cast<size_t>(num_outputs),
                                   .inputs = views.data(),
                                   .outputs = views.data() + num_inputs};
    check(*node.of, "launch", [&] { return node.kernel.launch(current.user, current.stream, &host(), &call); });
  }

 private:
  static void set(Operand& operand, DType dtype, const Shape& shape) {
    operand.dtype = static_cast<int32_t>(dtype);
    operand.rank = shape.rank();
    std::copy(shape.dims().begin(), shape.dims().end(), operand.dims);
  }
};

class PluginKernels final : public KernelTable {
 public:
  explicit PluginKernels(RegistrationPtr of) : of_(std::move(of)), launch_(kernel<LaunchKernel>(of_->name)) {}

  DeviceKernel find(const Graph& graph, const Node& node) const override {
    const size_t operands = static_cast<size_t>(node.num_formal_inputs) + node.outputs.size();
    if (operands > kMaxKernelOperands || node.inputs.size() != static_cast<size_t>(node.num_formal_inputs)) return {};
    for (const auto* ids : {&node.inputs, &node.outputs})
      for (ValueId id : *ids)
        if (id != kNoValue && (!graph.type(id).has_rank() || graph.type(id).rank() > TREADLE_PLUGIN_MAX_RANK)) return {};
    for (const Registration::Kernel& candidate : of_->kernels) {
      if (!node.is(candidate.op_type, candidate.domain)) continue;
      const auto dtype = static_cast<DType>(candidate.callbacks.dtype);
      if (dtype != DType::undefined && (!node.has_input(0) || graph.type(node.inputs[0]).dtype != dtype)) continue;
      treadle_node view = view_of(graph, node);
      if (candidate.callbacks.takes && candidate.callbacks.takes(of_->callbacks.user, &host(), &view) == 0) continue;
      return {&launch_, std::make_shared<DeviceNode>(of_, candidate.callbacks, std::move(view))};
    }
    return {};
  }

 private:
  const RegistrationPtr of_;
  const KernelDef launch_;
};

constexpr size_t kFirstDeviceVersion = offsetof(treadle_device, create_device);

void check_complete(const treadle_device& device) {
  const bool complete = device.name && device.allocate && device.free && device.create_stream && device.destroy_stream && device.copy &&
                        device.synchronize && device.create_event && device.destroy_event && device.record_event && device.stream_wait &&
                        device.event_complete && device.wait_event;
  if (!complete) throw Error(ErrorCode::invalid_argument, "a device needs a name and all of its callbacks");
  if (!device.create_device != !device.destroy_device)
    throw Error(ErrorCode::invalid_argument, "a device has both of create_device and destroy_device, or neither");
  const bool of_bus[] = {device.allocate_anywhere != nullptr, device.free_anywhere != nullptr, device.reserve != nullptr,
                         device.unreserve != nullptr,         device.discard != nullptr,       device.move != nullptr};
  if (std::count(std::begin(of_bus), std::end(of_bus), of_bus[0]) != std::ssize(of_bus))
    throw Error(ErrorCode::invalid_argument,
                "a device has all of allocate_anywhere, free_anywhere, reserve, unreserve, discard and move, or none");
}

}  // namespace

void register_device(const treadle_device& given) {
  const treadle_device device = of_any_version(given, kFirstDeviceVersion, "treadle_device");
  check_complete(device);
  auto of = std::make_shared<Registration>(Registration{device.name, device, {}});
  for (size_t i = 0; i < device.num_kernels; ++i) {
    const treadle_device_kernel& given = device.kernels[i];
    if (!given.op_type || !*given.op_type || !given.launch || given.dtype < 0 || given.dtype >= kNumDTypes)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("kernel {} of the device {} lacks an op_type, a launch or a known dtype", i, of->name));
    of->kernels.push_back({given.op_type, given.domain ? given.domain : "", given});
  }
  of->callbacks.name = of->name.c_str();
  of->callbacks.kernels = nullptr;
  auto make = [of](const DeviceRequest& request) -> std::shared_ptr<Device> {
    return std::make_shared<PluginDevice>(request.name, std::make_shared<const Instance>(of, request));
  };
  std::vector<std::string> fused;
  for (const Registration::Kernel& kernel : of->kernels)
    if (kernel.domain == "treadle") fused.push_back(kernel.op_type);
  register_device_type({.name = of->name,
                        .make = std::move(make),
                        .make_host = {},
                        .kernels = std::make_shared<PluginKernels>(of),
                        .fused_operators = std::move(fused)});
}

}  // namespace treadle::plugin
