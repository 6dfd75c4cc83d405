// What memory is, and where it comes from.
#include <cstdlib>
#include <cstring>
#include <new>

#include "ort_api/api.h"

namespace treadle::ort {
namespace {

constexpr uint32_t kAllocatorVersion = 18;  // of the struct that we hand out

struct PlainAllocator : OrtAllocator {
  OrtMemoryInfo info;

  explicit PlainAllocator(OrtMemoryInfo about) : OrtAllocator{}, info(std::move(about)) {
    version = kAllocatorVersion;
    Alloc = Reserve = [](OrtAllocator*, size_t size) -> void* {
      if (size == 0) return nullptr;
      return std::aligned_alloc(Storage::kAlignment, (size + Storage::kAlignment - 1) / Storage::kAlignment * Storage::kAlignment);
    };
    Free = [](OrtAllocator*, void* data) { std::free(data); };
    Info = [](const OrtAllocator* self) -> const OrtMemoryInfo* { return &static_cast<const PlainAllocator*>(self)->info; };
  }
};

OrtStatus* make_memory_info(OrtMemoryInfo info, OrtMemoryInfo** out) {
  return guarded([&] { required(out, "out") = new OrtMemoryInfo(std::move(info)); });
}

void add_memory_info(OrtApi& table) {
  table.CreateMemoryInfo = [](const char* name, OrtAllocatorType type, int id, OrtMemType mem_type, OrtMemoryInfo** out) {
    return guarded([&] {
      const std::string device = chars_of(name, "name");
      if (device != "Cpu") throw Error(ErrorCode::invalid_argument, "there is no memory \"" + device + "\"; the memory here is \"Cpu\"");
      required(out, "out") = new OrtMemoryInfo{.name = device, .allocator_type = type, .id = id, .mem_type = mem_type};
    });
  };
  table.CreateMemoryInfo_V2 = [](const char* name, OrtMemoryInfoDeviceType device, uint32_t vendor, int32_t id,
                                 OrtDeviceMemoryType mem_type, size_t, OrtAllocatorType type, OrtMemoryInfo** out) {
    return guarded([&] {
      if (device != OrtMemoryInfoDeviceType_CPU)
        throw Error(ErrorCode::invalid_argument, "there is no device of kind " + std::to_string(device) + ", the CPU (0) only");
      required(out, "out") = new OrtMemoryInfo{
          .name = chars_of(name, "name"), .allocator_type = type, .id = id, .device_mem_type = mem_type, .vendor_id = vendor};
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
  table.MemoryInfoGetDeviceType = [](const OrtMemoryInfo*, OrtMemoryInfoDeviceType* out) { *out = OrtMemoryInfoDeviceType_CPU; };
  table.MemoryInfoGetDeviceMemType = [](const OrtMemoryInfo* info) { return info->device_mem_type; };
  table.MemoryInfoGetVendorId = [](const OrtMemoryInfo* info) { return info->vendor_id; };
}

void add_allocators(OrtApi& table) {
  table.GetAllocatorWithDefaultOptions = [](OrtAllocator** out) { return guarded([&] { required(out, "out") = &default_allocator(); }); };
  table.CreateAllocator = [](const OrtSession*, const OrtMemoryInfo* info, OrtAllocator** out) {
    return guarded([&] { required(out, "out") = new PlainAllocator(required(info, "mem_info")); });
  };
  table.ReleaseAllocator = [](OrtAllocator* allocator) {
    if (allocator != &default_allocator()) delete static_cast<PlainAllocator*>(allocator);
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
  table.AllocatorGetStats = [](const OrtAllocator*, OrtKeyValuePairs** out) {
    return guarded([&] { required(out, "out") = new OrtKeyValuePairs(); });  // plain memory counts nothing
  };
  table.GetSharedAllocator = [](OrtEnv*, const OrtMemoryInfo*, OrtAllocator** out) {
    return guarded([&] { required(out, "out") = &default_allocator(); });
  };
}

// Allocators of the environment, for sessions that ask for them by session.use_env_allocators.
void add_shared_allocators(OrtApi& table) {
  table.CreateArenaCfg = [](size_t max_mem, int strategy, int initial, int dead, OrtArenaCfg** out) {
    return guarded([&] {
      auto size = [](int value) { return static_cast<size_t>(value); };  // -1: as it sees fit
      required(out, "out") = new OrtArenaCfg{{{"max_mem", max_mem},
                                              {"arena_extend_strategy", size(strategy)},
                                              {"initial_chunk_size_bytes", size(initial)},
                                              {"max_dead_bytes_per_chunk", size(dead)}}};
    });
  };
  table.CreateArenaCfgV2 = [](const char* const* keys, const size_t* values, size_t count, OrtArenaCfg** out) {
    return guarded([&] {
      auto made = std::make_unique<OrtArenaCfg>();
      for (size_t i = 0; i < count; ++i) made->settings[chars_of(keys[i], "a key")] = values[i];
      required(out, "out") = made.release();
    });
  };
  table.ReleaseArenaCfg = [](OrtArenaCfg* config) { delete config; };
  table.CreateAndRegisterAllocator = [](OrtEnv* environment, const OrtMemoryInfo*, const OrtArenaCfg*) {
    return guarded([&] { required(environment, "env").allocator = make_allocator("arena"); });
  };
  table.CreateAndRegisterAllocatorV2 = [](OrtEnv* environment, const char*, const OrtMemoryInfo*, const OrtArenaCfg*, const char* const*,
                                          const char* const*, size_t) {
    return guarded([&] { required(environment, "env").allocator = make_allocator("arena"); });
  };
  table.RegisterAllocator = [](OrtEnv* environment, OrtAllocator* allocator) {
    return guarded([&] { required(environment, "env").allocator = wrap_allocator(required(allocator, "allocator")); });
  };
  table.UnregisterAllocator = [](OrtEnv* environment, const OrtMemoryInfo*) -> OrtStatus* {
    environment->allocator = nullptr;
    return nullptr;
  };
}

}  // namespace

OrtAllocator& default_allocator() {
  static PlainAllocator allocator({});
  return allocator;
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
  // The client's memory need not be aligned as ours is: a block has room to begin later, and the way back in front of it.
  auto allocate_block = [&allocator](size_t size, MemoryClass) -> void* {
    auto* block = static_cast<std::byte*>(allocator.Alloc(&allocator, size + 2 * Storage::kAlignment));
    if (block == nullptr) return nullptr;
    const auto address = reinterpret_cast<uintptr_t>(block) + sizeof(void*);
    std::byte* data =
        block + ((address + Storage::kAlignment - 1) / Storage::kAlignment * Storage::kAlignment - reinterpret_cast<uintptr_t>(block));
    std::memcpy(data - sizeof(void*), &block, sizeof(void*));
    return data;
  };
  auto free_block = [&allocator](void* data, size_t, MemoryClass) {
    void* block = nullptr;
    std::memcpy(&block, static_cast<std::byte*>(data) - sizeof(void*), sizeof(void*));
    allocator.Free(&allocator, block);
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
