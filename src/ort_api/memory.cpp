// Memory infos, which describe kinds of memory, and allocators.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include "ort_api/api.h"

namespace treadle::ort {
namespace {

constexpr uint32_t kAllocatorVersion = 24;  // version of OrtAllocator in this library's allocators

// Statistics such as ONNX Runtime's arenas provide. Each block's size is stored before the block, so that its release can be counted.
struct Counts {
  std::atomic<int64_t> in_use{0}, most_in_use{0}, largest{0}, allocations{0}, reserves{0};

  void add(int64_t size, bool reserved) {
    auto raise = [](std::atomic<int64_t>& to, int64_t value) {
      for (int64_t seen = to.load(); seen < value && !to.compare_exchange_weak(seen, value);) {
      }
    };
    raise(most_in_use, in_use += size);
    raise(largest, size);
    ++allocations;
    if (reserved) ++reserves;
  }
  void give(OrtKeyValuePairs& pairs) const {
    const std::pair<const char*, int64_t> said[] = {{"InUse", in_use},          {"Limit", -1},
                                                    {"MaxAllocSize", largest},  {"MaxInUse", most_in_use},
                                                    {"NumAllocs", allocations}, {"NumArenaExtensions", 0},
                                                    {"NumArenaShrinkages", 0},  {"NumReserves", reserves},
                                                    {"RequestedInUse", in_use}, {"TotalAllocated", in_use}};
    for (const auto& [key, value] : said) pairs.entries[key] = std::to_string(value);
    pairs.index();
  }
};

// Allocates memory from a client's allocator: long-lived memory (`reserved`) by Reserve, if the allocator has it, other memory by Alloc.
void* taken(OrtAllocator& allocator, size_t size, bool reserved) {
  constexpr uint32_t kFirstWithReserve = 18;
  if (reserved && allocator.version >= kFirstWithReserve && allocator.Reserve != nullptr) return allocator.Reserve(&allocator, size);
  return allocator.Alloc(&allocator, size);
}

struct PlainAllocator : OrtAllocator, Kept<PlainAllocator> {
  OrtMemoryInfo info;
  std::shared_ptr<OrtAllocator> of;  // supplies the memory; null: the system does
  Counts counts;

  explicit PlainAllocator(OrtMemoryInfo about, std::shared_ptr<OrtAllocator> owner = nullptr)
      : OrtAllocator{}, info(std::move(about)), of(std::move(owner)) {
    version = kAllocatorVersion;
    Alloc = [](OrtAllocator* self, size_t size) { return ours(self).take(size, false); };
    Reserve = [](OrtAllocator* self, size_t size) { return ours(self).take(size, true); };
    AllocOnStream = [](OrtAllocator* self, size_t size, OrtSyncStream*) { return ours(self).take(size, false); };
    Free = give_back;
    Info = [](const OrtAllocator* self) -> const OrtMemoryInfo* { return &static_cast<const PlainAllocator*>(self)->info; };
    GetStats = [](const OrtAllocator* self, OrtKeyValuePairs** out) {
      return guarded([&] { required(out, "out") = static_cast<const PlainAllocator*>(self)->statistics().release(); });
    };
  }

  static PlainAllocator& ours(OrtAllocator* self) { return *static_cast<PlainAllocator*>(self); }
  static void give_back(OrtAllocator* self, void* data) {
    if (data == nullptr) return;
    PlainAllocator& own = ours(self);
    if (own.of) return own.of->Free(own.of.get(), data);
    std::byte* block = static_cast<std::byte*>(data) - Storage::kAlignment;
    own.counts.in_use -= *reinterpret_cast<const int64_t*>(block);
    std::free(block);
  }
  void* take(size_t size, bool reserved) {
    constexpr size_t kAlignment = Storage::kAlignment;
    if (size == 0) return nullptr;
    if (of) return taken(*of, size, reserved);
    if (size > SIZE_MAX - 2 * kAlignment) return nullptr;
    auto* block = static_cast<std::byte*>(std::aligned_alloc(kAlignment, (size + 2 * kAlignment - 1) / kAlignment * kAlignment));
    if (block == nullptr) return nullptr;
    *reinterpret_cast<int64_t*>(block) = static_cast<int64_t>(size);
    counts.add(static_cast<int64_t>(size), reserved);
    return block + kAlignment;
  }
  // Returns the statistics. As in ONNX Runtime, only allocators of the type arena have any.
  std::unique_ptr<OrtKeyValuePairs> statistics() const {
    auto made = std::make_unique<OrtKeyValuePairs>();
    if (info.allocator_type == OrtArenaAllocator) counts.give(*made);
    return made;
  }
};

OrtStatus* make_memory_info(OrtMemoryInfo info, OrtMemoryInfo** out) {
  return guarded([&] { required(out, "out") = new OrtMemoryInfo(std::move(info)); });
}

// A name that ONNX Runtime uses for a kind of memory. The table includes memory of devices that this build does not support.
struct NamedMemory {
  std::string_view name;
  OrtMemoryInfoDeviceType device;
  OrtDeviceMemoryType type = OrtDeviceMemoryType_DEFAULT;
  uint32_t vendor = 0;  // the device vendor's PCI id
};
constexpr uint32_t kNvidia = 0x10DE, kIntel = 0x8086, kMicrosoft = 0x1414, kAmd = 0x1002, kQualcomm = 0x5143;
constexpr NamedMemory kMemories[] = {
    {"Cpu", OrtMemoryInfoDeviceType_CPU},
    {"Cuda", OrtMemoryInfoDeviceType_GPU, OrtDeviceMemoryType_DEFAULT, kNvidia},
    {"CudaPinned", OrtMemoryInfoDeviceType_GPU, OrtDeviceMemoryType_HOST_ACCESSIBLE, kNvidia},
    {"Hip", OrtMemoryInfoDeviceType_GPU, OrtDeviceMemoryType_DEFAULT, kAmd},
    {"HipPinned", OrtMemoryInfoDeviceType_GPU, OrtDeviceMemoryType_HOST_ACCESSIBLE, kAmd},
    {"CpuAligned4K", OrtMemoryInfoDeviceType_CPU},
    {"OpenVINO_GPU", OrtMemoryInfoDeviceType_GPU, OrtDeviceMemoryType_DEFAULT, kIntel},
    {"OpenVINO_RT_NPU", OrtMemoryInfoDeviceType_NPU, OrtDeviceMemoryType_DEFAULT, kIntel},
    {"DML", OrtMemoryInfoDeviceType_GPU, OrtDeviceMemoryType_DEFAULT, kMicrosoft},
    {"WebGPU_Buf", OrtMemoryInfoDeviceType_GPU},
    {"WebNN_Ten", OrtMemoryInfoDeviceType_GPU},
    {"QnnHtpShared", OrtMemoryInfoDeviceType_CPU, OrtDeviceMemoryType_HOST_ACCESSIBLE, kQualcomm},
};

void add_memory_info(OrtApi& table) {
  table.CreateMemoryInfo = [](const char* name, OrtAllocatorType type, int id, OrtMemType mem_type, OrtMemoryInfo** out) {
    return guarded([&] {
      std::string_view wanted = chars_of(name, "name");
      if (wanted == "WebGPU_Buffer" || wanted == "WebNN_Tensor")
        wanted = wanted == "WebNN_Tensor" ? "WebNN_Ten" : "WebGPU_Buf";  // the names in older versions
      const auto* found =
          std::find_if(std::begin(kMemories), std::end(kMemories), [&](const auto& memory) { return memory.name == wanted; });
      if (found == std::end(kMemories))
        throw Error(ErrorCode::invalid_argument, "Specified device is not supported. Try CreateMemoryInfo_V2. There is no memory \"" +
                                                     std::string(wanted) + "\"; the memory here is \"Cpu\"");
      required(out, "out") = new OrtMemoryInfo{.name = std::string(wanted),
                                               .allocator_type = type,
                                               .id = wanted == "Cpu" ? 0 : id,
                                               .mem_type = mem_type,
                                               .device_mem_type = found->type,
                                               .vendor_id = found->vendor,
                                               .device = found->device};
    });
  };
  table.CreateMemoryInfo_V2 = [](const char* name, OrtMemoryInfoDeviceType device, uint32_t vendor, int32_t id,
                                 OrtDeviceMemoryType mem_type, size_t, OrtAllocatorType type, OrtMemoryInfo** out) {
    return guarded([&] {
      const bool is_plain = mem_type == OrtDeviceMemoryType_DEFAULT;
      if (device < OrtMemoryInfoDeviceType_CPU || device > OrtMemoryInfoDeviceType_NPU)
        throw Error(ErrorCode::invalid_argument, "Invalid device type specified: " + std::to_string(device));
      required(out, "out") = new OrtMemoryInfo{.name = chars_of(name, "MemoryInfo name"),
                                               .allocator_type = type,
                                               .id = id,
                                               .mem_type = is_plain ? OrtMemTypeDefault : OrtMemTypeCPUOutput,
                                               .device_mem_type = is_plain ? mem_type : OrtDeviceMemoryType_HOST_ACCESSIBLE,
                                               .vendor_id = vendor,
                                               .device = device};
    });
  };
  table.CreateCpuMemoryInfo = [](OrtAllocatorType type, OrtMemType mem_type, OrtMemoryInfo** out) {
    return make_memory_info({.allocator_type = type, .mem_type = mem_type}, out);
  };
  table.ReleaseMemoryInfo = [](OrtMemoryInfo* info) { delete info; };
  table.CompareMemoryInfo = [](const OrtMemoryInfo* a, const OrtMemoryInfo* b, int* out) {
    return guarded([&] { required(out, "out") = required(a, "info1") == required(b, "info2") ? 0 : -1; });
  };
  table.MemoryInfoGetName = [](const OrtMemoryInfo* info, const char** out) -> OrtStatus* {
    *out = info->name.c_str();
    return nullptr;
  };
  table.MemoryInfoGetId = [](const OrtMemoryInfo* info, int* out) -> OrtStatus* {
    *out = info->id;
    return nullptr;
  };
  table.MemoryInfoGetMemType = [](const OrtMemoryInfo* info, OrtMemType* out) -> OrtStatus* {
    *out = info->mem_type;
    return nullptr;
  };
  table.MemoryInfoGetType = [](const OrtMemoryInfo* info, OrtAllocatorType* out) -> OrtStatus* {
    *out = info->allocator_type;
    return nullptr;
  };
  table.MemoryInfoGetDeviceType = [](const OrtMemoryInfo* info, OrtMemoryInfoDeviceType* out) { *out = info->device; };
  table.MemoryInfoGetDeviceMemType = [](const OrtMemoryInfo* info) { return info->device_mem_type; };
  table.MemoryInfoGetVendorId = [](const OrtMemoryInfo* info) { return info->vendor_id; };
}

void add_allocators(OrtApi& table) {
  table.GetAllocatorWithDefaultOptions = [](OrtAllocator** out) { return guarded([&] { required(out, "out") = &default_allocator(); }); };
  table.CreateAllocator = [](const OrtSession* session, const OrtMemoryInfo* info, OrtAllocator** out) {
    return guarded([&] {
      const OrtSession& of = required(session, "session");
      if (required(info, "mem_info").device != OrtMemoryInfoDeviceType_CPU)
        throw Error(ErrorCode::invalid_argument, "No requested allocator available: of \"" + info->name + "\", the memory here is \"Cpu\"");
      required(out, "out") =
          make_handle<PlainAllocator>(of.allocator ? *of.allocator->Info(of.allocator.get()) : memory_of(of), of.allocator);
    });
  };
  table.ReleaseAllocator = [](OrtAllocator* allocator) {
    if (allocator != &default_allocator()) release_handle(static_cast<PlainAllocator*>(allocator));
  };
  table.AllocatorAlloc = [](OrtAllocator* allocator, size_t size, void** out) {
    return guarded([&] { required(out, "out") = size == 0 ? nullptr : allocate(allocator, size); });
  };
  table.AllocatorFree = [](OrtAllocator* allocator, void* data) -> OrtStatus* {
    if (data != nullptr) allocator->Free(allocator, data);
    return nullptr;
  };
  table.AllocatorGetInfo = [](const OrtAllocator* allocator, const OrtMemoryInfo** out) {
    return guarded([&] { required(out, "out") = required(allocator, "allocator").Info(allocator); });
  };
  table.AllocatorGetStats = [](const OrtAllocator* allocator, OrtKeyValuePairs** out) {
    constexpr uint32_t kFirstWithStatistics = 23;
    if (allocator != nullptr && allocator->version >= kFirstWithStatistics && allocator->GetStats != nullptr)
      return allocator->GetStats(allocator, out);
    return guarded([&] { required(out, "out") = (required(allocator, "allocator"), new OrtKeyValuePairs()); });
  };
  table.GetSharedAllocator = [](OrtEnv* environment, const OrtMemoryInfo* info, OrtAllocator** out) {
    return guarded([&] {
      OrtAllocator* registered = required(environment, "env").registered.get();
      const bool is_ours = required(info, "mem_info").device == OrtMemoryInfoDeviceType_CPU;  // this library allocates only CPU memory
      required(out, "out") = !is_ours ? nullptr : registered != nullptr ? registered : &default_allocator();
    });
  };
}

void check_settings(const OrtArenaCfg& config) {
  static constexpr std::string_view kKeys[] = {"max_mem",
                                               "arena_extend_strategy",
                                               "initial_chunk_size_bytes",
                                               "max_dead_bytes_per_chunk",
                                               "initial_growth_chunk_size_bytes",
                                               "max_power_of_two_extend_bytes"};
  for (const auto& [key, value] : config.settings) {
    if (std::find(std::begin(kKeys), std::end(kKeys), key) == std::end(kKeys))
      throw Error(ErrorCode::invalid_argument, "Invalid key found: " + key);
    if (key == "arena_extend_strategy" && value > 1 && value != SIZE_MAX)  // SIZE_MAX: the default (-1)
      throw Error(ErrorCode::invalid_argument,
                  "Invalid configuration value was provided: the arena's arena_extend_strategy is 0 or 1, not " + std::to_string(value));
  }
}

void register_arena(OrtEnv* environment, const OrtMemoryInfo* info) {
  if (environment == nullptr) throw Error(ErrorCode::invalid_argument, "Env is null");
  if (info == nullptr) throw Error(ErrorCode::invalid_argument, "OrtMemoryInfo is null");
  if (info->device != OrtMemoryInfoDeviceType_CPU)
    throw Error(ErrorCode::invalid_argument, "Only CPU devices are supported, and not the memory \"" + info->name + "\"");
  environment->registered = nullptr;
  environment->allocator = make_allocator("arena");
}

// Sets the functions for the environment's allocator, which sessions with the config entry session.use_env_allocators use.
void add_shared_allocators(OrtApi& table) {
  table.CreateArenaCfg = [](size_t max_mem, int strategy, int initial, int dead, OrtArenaCfg** out) {
    return guarded([&] {
      auto size = [](int value) { return static_cast<size_t>(value); };  // -1: the default
      auto made = std::make_unique<OrtArenaCfg>();
      made->settings = {{"max_mem", max_mem},
                        {"arena_extend_strategy", size(strategy)},
                        {"initial_chunk_size_bytes", size(initial)},
                        {"max_dead_bytes_per_chunk", size(dead)}};
      check_settings(*made);
      required(out, "out") = made.release();
    });
  };
  table.CreateArenaCfgV2 = [](const char* const* keys, const size_t* values, size_t count, OrtArenaCfg** out) {
    return guarded([&] {
      auto made = std::make_unique<OrtArenaCfg>();
      for (size_t i = 0; i < count; ++i) made->settings[chars_of(keys[i], "a key")] = values[i];
      check_settings(*made);
      required(out, "out") = made.release();
    });
  };
  table.ReleaseArenaCfg = [](OrtArenaCfg* config) { delete config; };
  table.CreateAndRegisterAllocator = [](OrtEnv* environment, const OrtMemoryInfo* info, const OrtArenaCfg*) {
    return guarded([&] { register_arena(environment, info); });
  };
  table.CreateAndRegisterAllocatorV2 = [](OrtEnv* environment, const char* provider, const OrtMemoryInfo* info, const OrtArenaCfg*,
                                          const char* const* keys, const char* const* values, size_t count) {
    return guarded([&] {
      (void)filled_provider_options(keys, values, count);
      const std::string name = chars_of(provider, "provider_type");
      if (name != "CPUExecutionProvider")
        throw Error(ErrorCode::invalid_argument, name + " is not implemented in CreateAndRegisterAllocatorV2(): CPUExecutionProvider is");
      register_arena(environment, info);
    });
  };
  table.RegisterAllocator = [](OrtEnv* environment, OrtAllocator* allocator) {
    return guarded([&] {
      if (environment == nullptr) throw Error(ErrorCode::invalid_argument, "Env is null");
      if (allocator == nullptr) throw Error(ErrorCode::invalid_argument, "Provided allocator is null");
      const OrtMemoryInfo& info = required(allocator->Info(allocator), "OrtMemoryInfo");
      expect_cpu(info);
      if (info.allocator_type == OrtArenaAllocator)
        throw Error(ErrorCode::invalid_argument,
                    "Please register the allocator as OrtDeviceAllocator even if the provided allocator has arena logic built-in. "
                    "OrtArenaAllocator is reserved for internal arena logic based allocators only.");
      environment->allocator = wrap_allocator(*allocator);
      environment->registered = keep(*allocator);
    });
  };
  table.UnregisterAllocator = [](OrtEnv* environment, const OrtMemoryInfo* info) {
    return guarded([&] {
      expect_cpu(required(info, "mem_info"));
      if (!required(environment, "env").allocator)
        throw Error(ErrorCode::invalid_argument, "No allocator for this device has been registered for sharing.");
      environment->allocator = nullptr;
      environment->registered = nullptr;
    });
  };
  // These functions fail, because clients cannot use memory of devices other than the CPU.
  table.CreateSharedAllocator = [](OrtEnv*, const OrtEpDevice*, OrtDeviceMemoryType, OrtAllocatorType, const OrtKeyValuePairs*,
                                   OrtAllocator**) { return make_status(ORT_INVALID_ARGUMENT, "Invalid memory type for OrtEpDevice."); };
  table.ReleaseSharedAllocator = [](OrtEnv*, const OrtEpDevice*, OrtDeviceMemoryType) {
    return make_status(ORT_INVALID_ARGUMENT, "Invalid memory type for OrtEpDevice.");
  };
}

}  // namespace

OrtAllocator& default_allocator() {
  static PlainAllocator allocator({});
  return allocator;
}

const OrtMemoryInfo& memory_of(const OrtSession& session) {
  static const OrtMemoryInfo plain, arena{.allocator_type = OrtArenaAllocator};
  return session.cpu_mem_arena ? arena : plain;
}

void expect_cpu(const OrtMemoryInfo& info) {
  if (info.device != OrtMemoryInfoDeviceType_CPU)
    throw Error(ErrorCode::invalid_argument, "the memory \"" + info.name + "\" is of another device, the CPU is the only one");
}

std::shared_ptr<OrtAllocator> keep(OrtAllocator& allocator) {
  const bool is_ours = allocator.Free == PlainAllocator::give_back;
  if (is_ours && static_cast<PlainAllocator&>(allocator).self) return static_cast<PlainAllocator&>(allocator).self;
  return {std::shared_ptr<void>(), &allocator};
}

void* allocate(OrtAllocator* allocator, size_t size_bytes) {
  void* data = required(allocator, "allocator").Alloc(allocator, size_bytes);
  if (data == nullptr) throw Error(ErrorCode::resource_exhausted, "the allocator has no " + std::to_string(size_bytes) + " bytes");
  return data;
}

char* copy_text(OrtAllocator* allocator, std::string_view text) {
  char* copy = static_cast<char*>(allocate(allocator, text.size() + 1));
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

std::shared_ptr<Allocator> wrap_allocator(OrtAllocator& allocator) {
  const std::shared_ptr<OrtAllocator> kept = keep(allocator);
  // The client's memory may be less aligned than this library needs. So blocks are allocated larger than requested, and the original
  // address is stored before the aligned one.
  auto allocate_block = [kept](size_t size, MemoryClass of) -> void* {
    const bool stays = of == MemoryClass::weights || of == MemoryClass::packed;
    auto* block = static_cast<std::byte*>(taken(*kept, size + 2 * Storage::kAlignment, stays));
    if (block == nullptr) return nullptr;
    const auto address = reinterpret_cast<uintptr_t>(block) + sizeof(void*);
    std::byte* data =
        block + ((address + Storage::kAlignment - 1) / Storage::kAlignment * Storage::kAlignment - reinterpret_cast<uintptr_t>(block));
    std::memcpy(data - sizeof(void*), &block, sizeof(void*));
    return data;
  };
  auto free_block = [kept](void* data, size_t, MemoryClass) {
    void* block = nullptr;
    std::memcpy(&block, static_cast<std::byte*>(data) - sizeof(void*), sizeof(void*));
    kept->Free(kept.get(), block);
  };
  return std::make_shared<CallbackAllocator>(
      AllocatorCallbacks{.name = "client", .allocate = allocate_block, .free = free_block, .trim = {}});
}

void add_memory(OrtApi& table) {
  add_memory_info(table);
  add_allocators(table);
  add_shared_allocators(table);
}

}  // namespace treadle::ort
