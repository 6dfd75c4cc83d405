#include "device/vulkan/vulkan_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "device/vulkan/hazards.h"
#include "device/vulkan/staging_pool.h"
#include "device/vulkan/time_stamps.h"
#include "device/vulkan/timeline.h"
#include "treadle/error.h"

namespace treadle::vulkan {
namespace {

constexpr size_t kCopyBytes = size_t{16} << 20;         // size of the parts into which large copies are divided
constexpr size_t kMaxInFlightBytes = size_t{64} << 20;  // most staging memory that a stream uses at a time
constexpr uint32_t kCommandsInBuffer = 64;              // number of commands after which a buffer is submitted

thread_local VulkanStream* current_stream = nullptr;

class VulkanEvent final : public Event {
 public:
  bool complete() const override {
    std::lock_guard lock(mutex_);
    return !timeline_ || timeline_->look() >= value_;
  }
  void synchronize() const override {
    const auto [timeline, value] = recorded();
    if (timeline) timeline->wait(value);
  }
  void set(std::shared_ptr<Timeline> timeline, uint64_t value) {
    std::lock_guard lock(mutex_);
    timeline_ = std::move(timeline);
    value_ = value;
  }
  std::pair<std::shared_ptr<Timeline>, uint64_t> recorded() const {
    std::lock_guard lock(mutex_);
    return {timeline_, value_};
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Timeline> timeline_;  // null: the event has not been recorded yet
  uint64_t value_ = 0;
};

class StreamOfCommands final : public VulkanStream {
 public:
  StreamOfCommands(std::shared_ptr<Device> device, std::shared_ptr<Parts> parts)
      : device_(std::move(device)),
        parts_(std::move(parts)),
        timeline_(std::make_shared<Timeline>(parts_)),
        staging_pool_(std::make_shared<StagingPool>(parts_)) {
    const VkCommandPoolCreateInfo info{VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, nullptr, VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                       connection().queue_family()};
    connection().check(connection()->CreateCommandPool(connection().handle(), &info, nullptr, &pool_), "make a command pool");
  }
  ~StreamOfCommands() override {
    if (!connection().is_of_this_process()) {
      timeline_->drop_all();
      return;
    }
    try {
      synchronize();
    } catch (...) {  // ignored: a destructor cannot report the error
    }
    connection().wait_idle();
    timeline_->drop_all();  // functions are left if the device is lost
    commands_.clear();      // destroys the buffers' time stamps
    connection()->DestroyCommandPool(connection().handle(), pool_, nullptr);
  }

  Device& device() const override { return *device_; }
  const Features& features() const override { return connection().features(); }

  // Calls `work` immediately: kernels record commands. `work` owns objects that these commands use, so it is kept until they are done.
  void enqueue(Work work, std::string_view) override {
    connection().check_process();
    struct Current {  // restores current_stream and clears uses_, even if `work` throws
      StreamOfCommands& stream;
      VulkanStream* const before = std::exchange(current_stream, &stream);
      ~Current() {
        current_stream = before;
        stream.uses_.reset();
      }
    };
    {
      const Current current{*this};
      work();
    }
    keep(std::move(work));
  }
  void enqueue_release(Work work) override { timeline_->when_done(current_submission(), std::move(work)); }

  void copy(void* dst, const void* src, size_t size_bytes, CopyKind kind) override {
    if (kind == CopyKind::device_to_device) return copy_within(dst, src, size_bytes);
    for (size_t done = 0; done < size_bytes; done += kCopyBytes) {
      const size_t bytes = std::min(kCopyBytes, size_bytes - done);
      auto* const to = static_cast<std::byte*>(dst) + done;
      const auto* const from = static_cast<const std::byte*>(src) + done;
      if (kind == CopyKind::host_to_device)
        upload(to, from, bytes);
      else
        download(to, from, bytes);
    }
  }

  void dispatch(const Shader& shader, std::span<const std::byte> push, std::array<uint32_t, 3> groups) override {
    if (std::count(groups.begin(), groups.end(), 0U) > 0) return;
    for (size_t i = 0; i < 3; ++i)
      if (groups[i] > features().max_groups[i])
        throw Error(ErrorCode::not_implemented, fmt::format("the shader {} needs {} work groups in dimension {}; {} takes {}",
                                                            shader.name(), groups[i], i, device_->name(), features().max_groups[i]));
    VkCommandBuffer commands = begin_command();
    connection()->CmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, parts_->pipelines.get(shader));
    connection()->CmdPushConstants(commands, parts_->pipelines.layout(), VK_SHADER_STAGE_COMPUTE_BIT, 0, static_cast<uint32_t>(push.size()),
                                   push.data());
    connection()->CmdDispatch(commands, groups[0], groups[1], groups[2]);
    end_command();
  }

  void declare_uses(std::span<const MemoryUse> uses) override {
    uses_.emplace(uses.begin(), uses.end());
    has_begun_uses_ = are_apart_ = false;
  }
  void declare_apart() override { are_apart_ = true; }

  // Adds barriers before and after recorded commands, because they may later be submitted again between any other commands.
  void begin_recorded() override {
    if (recording_) close_recording();
    hazards_.add_unknown();
    kept_ = std::make_unique<KeptCommands>(*this);
  }
  std::unique_ptr<RecordedWork> end_recorded() override {
    std::unique_ptr<KeptCommands> kept = std::move(kept_);
    if (recording_) close_recording();
    hazards_.add_unknown();
    return kept && kept->serves_again ? std::move(kept) : nullptr;
  }
  bool submit_again(RecordedWork& work) override {
    auto& kept = static_cast<KeptCommands&>(work);
    if (std::any_of(kept.buffers.begin(), kept.buffers.end(),
                    [done = timeline_->look()](const Commands* c) { return c->submission > done; }))
      return false;
    for (const auto& [address, buffer] : kept.copied)
      if (!parts_->heap.is_in(address, buffer)) return false;
    if (recording_) close_recording();
    for (Commands* const commands : kept.buffers) {
      commands->submission = kNotSubmitted;
      ready_.push_back(commands);
    }
    hazards_.add_unknown();
    if (kept.buffers.size() > 1) submit();  // a single buffer is submitted together with the work that follows
    return true;
  }

  void record(Event& event) override {
    cannot_serve_again();
    auto* own = dynamic_cast<VulkanEvent*>(&event);
    if (!own) throw Error(ErrorCode::invalid_argument, fmt::format("a stream of {} records events of GPUs only", device_->name()));
    submit();
    own->set(timeline_, submitted_);
  }
  // If the event is of another device, the host itself waits for it now.
  void wait(const std::shared_ptr<Event>& event) override {
    cannot_serve_again();
    auto* own = dynamic_cast<VulkanEvent*>(event.get());
    if (!own) return event->synchronize();
    const auto [timeline, value] = own->recorded();
    if (!timeline || timeline == timeline_) return;
    if (timeline->parts() != parts_) return timeline->wait(value);  // a semaphore works on one device only
    submit();                                                       // work recorded so far need not wait
    waits_.emplace_back(timeline, value);
  }
  void synchronize() override {
    cannot_serve_again();
    std::exception_ptr failed;
    try {
      submit();
    } catch (...) {
      failed = std::current_exception();
    }
    try {
      timeline_->wait(submitted_);
    } catch (...) {  // the device is lost
      if (!failed) failed = std::current_exception();
    }
    if (failed) {  // drops functions that wait for work which will never be done
      timeline_->drop_all();
      sites_.clear();
      std::rethrow_exception(failed);
    }
    timeline_->finish_all();
    throw_fault();
    parts_->pipelines.save();
  }
  void begin_timed() override {
    cannot_serve_again();
    is_timed_ = true;
    began_.reset();
  }
  void end_timed(Told told) override {
    if (!began_) began_ = stamp();  // if the timed work has recorded no command
    const TimeStamps::Stamp ended = stamp();
    timeline_->when_done(submitted_ + 1, [clock = &parts_->clock, began = *began_, ended, told = std::move(told)] {
      if (began.is_known() && ended.is_known()) told(clock->steady_ns(began.ticks()), clock->steady_ns(ended.ticks()));
    });
    is_timed_ = false;
    if (num_commands_ >= kCommandsInBuffer) submit();
  }
  FaultSite fault_site(std::string text) override {
    if (!fault_) {
      fault_ = std::make_unique<Buffer>(connection(), Heap::kAlignment, Buffer::For::shared);
      std::memset(fault_->mapped(), 0, fault_->size_bytes());
    }
    if (kept_) return {fault_->address(), kept_->add_site(std::move(text))};
    sites_.push_back(std::move(text));
    return {fault_->address(), static_cast<uint32_t>(sites_.size())};
  }

 private:
  static constexpr uint64_t kNotSubmitted = UINT64_MAX;
  static constexpr uint32_t kFirstKeptSite = 1U << 31;  // smallest number of fault sites in recorded work

  struct Commands {
    VkCommandBuffer handle = VK_NULL_HANDLE;
    uint64_t submission = 0;  // number of the last submission that contains the buffer
    bool is_kept = false;
    std::unique_ptr<TimeStamps> stamps;
    bool is_stamped = false;  // true: the current recording has a time stamp
  };

  struct KeptCommands final : RecordedWork {
    explicit KeptCommands(StreamOfCommands& stream) : stream(stream) {}
    ~KeptCommands() override {
      for (Commands* const commands : buffers) commands->is_kept = false;
      for (const uint32_t number : sites) stream.dropped_sites_.insert(stream.kept_sites_.extract(number));
    }
    uint32_t add_site(std::string text) {
      uint32_t& number = stream.last_kept_site_;
      do {
        number = std::max(number + 1, kFirstKeptSite);
      } while (!stream.kept_sites_.try_emplace(number, text).second);
      return sites.emplace_back(number);
    }

    StreamOfCommands& stream;
    std::vector<Commands*> buffers;
    std::vector<std::pair<uint64_t, uint64_t>> copied;  // addresses that are copied, with ids of their buffers
    std::vector<uint32_t> sites;
    bool serves_again = true;
  };

  const Connection& connection() const { return parts_->connection; }

  void cannot_serve_again() {
    if (kept_) kept_->serves_again = false;
  }

  // Throws the error that a shader has written to the fault site, if any. @pre all work is done
  void throw_fault() {
    uint32_t number = 0;
    if (fault_) std::memcpy(&number, fault_->mapped(), sizeof(number));
    const std::vector<std::string> sites = std::exchange(sites_, {});
    std::map<uint32_t, std::string> dropped = std::exchange(dropped_sites_, {});
    if (number == 0) return;
    std::memset(fault_->mapped(), 0, sizeof(number));
    for (const auto* recorded : {&kept_sites_, &dropped})
      if (const auto found = recorded->find(number); found != recorded->end()) throw Error(ErrorCode::invalid_argument, found->second);
    throw Error(ErrorCode::invalid_argument, sites.at(number - 1));
  }

  // Returns the number of the submission that contains, or will contain, the last command or wait so far.
  uint64_t current_submission() const { return recording_ || !ready_.empty() || !waits_.empty() ? submitted_ + 1 : submitted_; }

  void keep(Work work) {
    // Adds a function that does nothing. Until the work is done, it owns the memory that the work uses.
    timeline_->when_done(current_submission(), [kept = std::make_shared<Work>(std::move(work))] {});
  }

  Commands& recording() {
    if (!recording_) {
      Commands* const next = free_commands();
      const VkCommandBufferUsageFlags use = kept_ ? 0 : VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT;
      const VkCommandBufferBeginInfo info{VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO, nullptr, use, nullptr};
      connection().check(connection()->BeginCommandBuffer(next->handle, &info), "begin a command buffer");
      next->is_stamped = false;
      next->submission = kNotSubmitted;
      if (kept_) {
        kept_->buffers.push_back(next);
        next->is_kept = true;
      }
      recording_ = next;
      num_commands_ = 0;
    }
    return *recording_;
  }

  TimeStamps::Stamp stamp() {
    if (recording_ && recording_->is_stamped && recording_->stamps->is_full()) submit();
    Commands& commands = recording();
    if (!commands.is_stamped) {
      if (!commands.stamps) commands.stamps = std::make_unique<TimeStamps>(connection());
      commands.stamps->reset(commands.handle);
      commands.is_stamped = true;
      timeline_->when_done(submitted_ + 1, [&commands, submission = submitted_ + 1] {  // before functions that use the stamps
        if (commands.submission == submission) commands.stamps->read();
      });
    }
    return commands.stamps->stamp(commands.handle);
  }

  // Begins to record and, if the command is timed, writes the first time stamp. May submit earlier commands, so it must be called before a
  // command takes staging memory or adds functions for the next submission.
  void stamp_begin() {
    recording();
    if (is_timed_ && !began_) began_ = stamp();
  }

  // Begins a command. Adds a barrier before it if necessary. @param own  the memory that the command uses; ignored if the kernel has
  // declared its uses
  VkCommandBuffer begin_command(std::span<const MemoryUse> own = {}) {
    stamp_begin();
    const bool has_barrier = is_timed_ || needs_barrier(own);  // overlapping commands cannot be timed
    if (has_barrier) {
      put_barrier();
      hazards_.clear();
    }
    if (!uses_ && own.empty())
      hazards_.add_unknown();
    else if (!uses_ || !has_begun_uses_ || has_barrier)
      hazards_.add(uses_ ? *uses_ : own);
    has_begun_uses_ = true;
    return recording_->handle;
  }
  bool needs_barrier(std::span<const MemoryUse> own) const {
    if (uses_) return has_begun_uses_ ? !are_apart_ : hazards_.needs_barrier(*uses_);
    return own.empty() ? hazards_.has_any() : hazards_.needs_barrier(own);
  }
  void put_barrier() {
    constexpr VkPipelineStageFlags kStages = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
    const VkMemoryBarrier barrier{
        VK_STRUCTURE_TYPE_MEMORY_BARRIER, nullptr, VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
        VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT};
    connection()->CmdPipelineBarrier(recording_->handle, kStages, kStages, 0, 1, &barrier, 0, nullptr, 0, nullptr);
  }
  void end_command() {
    if (++num_commands_ >= kCommandsInBuffer && !is_timed_) submit();  // end_timed() submits timed work
  }

  Commands* free_commands() {
    const uint64_t done = timeline_->look();
    for (const auto& commands : commands_)
      if (commands->submission <= done && !commands->is_kept) return commands.get();
    auto made = std::make_unique<Commands>();
    const VkCommandBufferAllocateInfo info{VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, nullptr, pool_, VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                           1};
    connection().check(connection()->AllocateCommandBuffers(connection().handle(), &info, &made->handle), "make a command buffer");
    return commands_.emplace_back(std::move(made)).get();
  }

  // Ends the recording of the current command buffer, and adds it to the next submission.
  void close_recording() {
    Commands* const recorded = std::exchange(recording_, nullptr);
    const VkMemoryBarrier to_host{VK_STRUCTURE_TYPE_MEMORY_BARRIER, nullptr, VK_ACCESS_TRANSFER_WRITE_BIT | VK_ACCESS_SHADER_WRITE_BIT,
                                  VK_ACCESS_HOST_READ_BIT};
    connection()->CmdPipelineBarrier(recorded->handle, VK_PIPELINE_STAGE_TRANSFER_BIT | VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                                     VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &to_host, 0, nullptr, 0, nullptr);
    connection().check(connection()->EndCommandBuffer(recorded->handle), "end a command buffer");
    ready_.push_back(recorded);
  }

  // Submits the recorded work. It begins after the events for which the stream waits. If submitting fails, work and waits are dropped.
  void submit() {
    if (!recording_ && ready_.empty() && waits_.empty()) return;
    if (recording_) close_recording();
    const std::vector<Commands*> ready = std::exchange(ready_, {});
    const auto waits = std::exchange(waits_, {});
    std::vector<VkCommandBuffer> buffers;
    for (const Commands* const commands : ready) buffers.push_back(commands->handle);
    std::vector<VkSemaphore> semaphores;
    std::vector<uint64_t> values;
    for (const auto& [timeline, value] : waits) {
      semaphores.push_back(timeline->semaphore());
      values.push_back(value);
      timeline_->when_done(submitted_ + 1, [timeline = timeline] {});  // keeps the semaphore until the submission is done
    }
    const std::vector<VkPipelineStageFlags> stages(semaphores.size(), VK_PIPELINE_STAGE_ALL_COMMANDS_BIT);
    const uint64_t signal = submitted_ + 1;
    const VkSemaphore own = timeline_->semaphore();
    VkTimelineSemaphoreSubmitInfo timelines{VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO};
    timelines.waitSemaphoreValueCount = static_cast<uint32_t>(values.size());
    timelines.pWaitSemaphoreValues = values.data();
    timelines.signalSemaphoreValueCount = 1;
    timelines.pSignalSemaphoreValues = &signal;
    VkSubmitInfo info{VK_STRUCTURE_TYPE_SUBMIT_INFO, &timelines};
    info.waitSemaphoreCount = static_cast<uint32_t>(semaphores.size());
    info.pWaitSemaphores = semaphores.data();
    info.pWaitDstStageMask = stages.data();
    info.commandBufferCount = static_cast<uint32_t>(buffers.size());
    info.pCommandBuffers = buffers.data();
    info.signalSemaphoreCount = 1;
    info.pSignalSemaphores = &own;
    connection().submit(info);
    submitted_ = signal;
    for (Commands* const commands : ready) commands->submission = signal;
    if (staging_.buffer) retire_staging();
  }

  // Returns staging memory. It stays in use until the submission that is being recorded is done.
  std::byte* stage(size_t size_bytes, Buffer::For use) {
    if (staging_.buffer && !staging_.fits(size_bytes, use)) retire_staging();
    if (!staging_.buffer) {
      if (staging_pool_->in_use_bytes() + size_bytes > kMaxInFlightBytes) {
        submit();
        timeline_->wait(submitted_);
      }
      staging_ = staging_pool_->take(size_bytes, use);
    }
    std::byte* const at = staging_.buffer->mapped() + staging_.used;
    staging_.used += (size_bytes + Heap::kAlignment - 1) / Heap::kAlignment * Heap::kAlignment;
    return at;
  }
  void retire_staging() {
    auto used = std::make_shared<StagingPool::Staging>(std::exchange(staging_, {}));
    timeline_->when_done(current_submission(), [pool = staging_pool_, used] { pool->give_back(std::move(*used)); });
  }

  // Records a copy between buffers. @param uses  the device memory that the copy reads and writes
  void copy_buffer(VkBuffer to, VkDeviceSize to_offset, VkBuffer from, VkDeviceSize from_offset, size_t size_bytes,
                   std::span<const MemoryUse> uses) {
    const VkBufferCopy region{from_offset, to_offset, size_bytes};
    connection()->CmdCopyBuffer(begin_command(uses), from, to, 1, &region);
    end_command();
  }
  Heap::Place place(const void* address, size_t size_bytes) const { return parts_->place(address, size_bytes); }
  // Returns the current address of memory that may move. Kernels declare their uses by such addresses, so copies must do this, too.
  const void* present(const void* data, size_t size_bytes) const {
    return reinterpret_cast<const void*>(parts_->movable.find(reinterpret_cast<uint64_t>(data), size_bytes));
  }
  void copy_within(void* dst, const void* src, size_t size_bytes) {
    if (size_bytes == 0) return;
    const Heap::Place to = place(dst, size_bytes), from = place(src, size_bytes);
    const MemoryUse uses[] = {{present(dst, size_bytes), size_bytes, Access::write}, {present(src, size_bytes), size_bytes, Access::read}};
    copy_buffer(to.buffer, to.offset, from.buffer, from.offset, size_bytes, uses);
    if (!kept_) return;
    kept_->copied.emplace_back(reinterpret_cast<uint64_t>(dst), to.buffer_id);
    kept_->copied.emplace_back(reinterpret_cast<uint64_t>(src), from.buffer_id);
  }
  void upload(std::byte* dst, const std::byte* src, size_t size_bytes) {
    cannot_serve_again();
    stamp_begin();
    std::byte* const staged = stage(size_bytes, Buffer::For::upload);
    std::memcpy(staged, src, size_bytes);
    const Heap::Place to = place(dst, size_bytes);
    const MemoryUse use{present(dst, size_bytes), size_bytes, Access::write};
    copy_buffer(to.buffer, to.offset, staging_.buffer->handle(), static_cast<VkDeviceSize>(staged - staging_.buffer->mapped()), size_bytes,
                std::span(&use, 1));
    if (uses_) hazards_.add_unknown();  // kernels do not declare the use of constants that they upload
  }
  void download(std::byte* dst, const std::byte* src, size_t size_bytes) {
    cannot_serve_again();
    stamp_begin();
    std::byte* const staged = stage(size_bytes, Buffer::For::download);
    const Heap::Place from = place(src, size_bytes);
    timeline_->when_done(submitted_ + 1, [dst, staged, size_bytes] { std::memcpy(dst, staged, size_bytes); });
    const MemoryUse use{present(src, size_bytes), size_bytes, Access::read};
    copy_buffer(staging_.buffer->handle(), static_cast<VkDeviceSize>(staged - staging_.buffer->mapped()), from.buffer, from.offset,
                size_bytes, std::span(&use, 1));
  }

  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Parts> parts_;
  const std::shared_ptr<Timeline> timeline_;
  VkCommandPool pool_ = VK_NULL_HANDLE;
  std::vector<std::unique_ptr<Commands>> commands_;
  Commands* recording_ = nullptr;  // null: no command buffer is being recorded
  uint32_t num_commands_ = 0;
  std::vector<Commands*> ready_;                // recorded buffers that have not been submitted yet
  std::unique_ptr<KeptCommands> kept_;          // not null between begin_recorded() and end_recorded()
  std::optional<std::vector<MemoryUse>> uses_;  // uses declared by declare_uses(); nullopt: it was not called
  bool has_begun_uses_ = false;                 // true: a command has been recorded since declare_uses()
  bool are_apart_ = false;                      // true: commands since declare_uses() do not depend on each other
  Hazards hazards_;
  bool is_timed_ = false;                                              // true between begin_timed() and end_timed()
  std::optional<TimeStamps::Stamp> began_;                             // time stamp before the first timed command
  uint64_t submitted_ = 0;                                             // number of submissions so far
  std::vector<std::pair<std::shared_ptr<Timeline>, uint64_t>> waits_;  // for the next submission to wait for
  const std::shared_ptr<StagingPool> staging_pool_;
  std::unique_ptr<Buffer> fault_;                  // word to which shaders write the number of a fault site; null: no site yet
  std::vector<std::string> sites_;                 // error texts of fault sites, by number - 1
  std::map<uint32_t, std::string> kept_sites_;     // error texts of fault sites in recorded work, by number
  std::map<uint32_t, std::string> dropped_sites_;  // as kept_sites_, for records that are destroyed but may still run
  uint32_t last_kept_site_ = 0;
  StagingPool::Staging staging_;  // staging memory for copies that are being recorded
};

class OpenDevice final : public VulkanDevice, private Bus {
 public:
  OpenDevice(const PhysicalDevice& physical, std::string name) : VulkanDevice(std::move(name)), parts_(std::make_shared<Parts>(physical)) {}

  const Features& features() const override { return parts_->connection.features(); }
  bool is_lost() const override { return parts_->connection.is_lost(); }
  void keep_pipelines_in(const std::string& folder) override { parts_->pipelines.keep_in(folder); }
  std::shared_ptr<Storage> allocate(size_t size_bytes) override {
    const uint64_t address = parts_->heap.allocate(size_bytes);
    return Storage::of_device(shared_from_this(), reinterpret_cast<void*>(address), size_bytes,
                              [parts = parts_, address, size_bytes] { parts->heap.free(address, size_bytes); });
  }
  std::unique_ptr<Stream> create_stream(std::string_view) override {
    return std::make_unique<StreamOfCommands>(shared_from_this(), parts_);
  }
  std::shared_ptr<Event> create_event() override { return std::make_shared<VulkanEvent>(); }
  Bus* bus() noexcept override { return this; }
  bool host_accessible() const noexcept override { return false; }
  std::optional<size_t> bytes_in_use() const override { return parts_->heap.used_bytes(); }
  bool tells_times() const noexcept override { return parts_->clock.exists(); }
  bool calls_work_at_once() const noexcept override { return true; }
  bool records_work() const noexcept override { return true; }

 private:
  static uint64_t as_address(const void* data) { return reinterpret_cast<uint64_t>(data); }
  static void* as_pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

  std::shared_ptr<Storage> allocate_anywhere(size_t size_bytes) override {
    const uint64_t address = parts_->movable.allocate(size_bytes);
    return Storage::of_device(shared_from_this(), as_pointer(address), size_bytes,
                              [parts = parts_, address, size_bytes] { parts->movable.free(address, size_bytes); });
  }
  bool reserve(void* data, size_t size_bytes) override {
    return data ? parts_->movable.reserve(as_address(data), size_bytes) : parts_->movable.reserve(size_bytes);
  }
  void unreserve(void* data, size_t size_bytes) noexcept override {
    data ? parts_->movable.unreserve(as_address(data), size_bytes) : parts_->movable.unreserve(size_bytes);
  }
  void discard(void* data, size_t size_bytes) override { parts_->movable.discard(as_address(data), size_bytes); }
  void forget(void* data, size_t size_bytes) noexcept override { parts_->movable.forget(as_address(data), size_bytes); }
  void keep_on_host(void* data, size_t size_bytes) override { parts_->movable.keep_on_host(as_address(data), size_bytes); }
  bool addresses_are_free() const noexcept override { return true; }
  void* reach(void* data, size_t size_bytes) override { return as_pointer(parts_->movable.reach(as_address(data), size_bytes)); }
  void move(Stream& stream, void* data, size_t size_bytes, Move where) override {
    if (!data || size_bytes == 0) return;
    const bool to_device = where == Move::to_device;
    const MovableMemory::Copy copy = to_device ? parts_->movable.move_to_device(as_address(data), size_bytes)
                                               : parts_->movable.move_to_host(as_address(data), size_bytes, where == Move::back_to_host);
    if (copy.to != 0) stream.copy(as_pointer(copy.to), as_pointer(copy.from), copy.size_bytes, CopyKind::device_to_device);
    if (copy.free_on_host != 0)
      stream.enqueue_release([parts = parts_, copy] { parts->host_heap.free(copy.free_on_host, copy.size_bytes); });
  }

  const std::shared_ptr<Parts> parts_;
};

}  // namespace

VulkanStream* VulkanStream::current() noexcept { return current_stream; }

std::shared_ptr<VulkanDevice> VulkanDevice::open(const PhysicalDevice& physical, std::string name) {
  return std::make_shared<OpenDevice>(physical, std::move(name));
}

}  // namespace treadle::vulkan
