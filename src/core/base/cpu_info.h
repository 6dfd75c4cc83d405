// The machine as this process may use it: CPUs, memory, instruction sets, caches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace treadle {

/// The instruction sets that the CPU has and whose registers the operating system saves.
struct CpuFeatures {
  bool avx2 = false;         ///< AVX2, with FMA and F16C
  bool avx512 = false;       ///< AVX-512 F, CD, BW, DQ and VL
  bool avx512_vnni = false;  ///< int8 dot products, 512 bits
  bool avx512_bf16 = false;
  bool avx512_fp16 = false;
  bool avx_vnni = false;  ///< int8 dot products, 256 bits, with VEX encoding
  bool amx_bf16 = false;  ///< matrix tiles, if the kernel has granted them to this process
  bool amx_int8 = false;
  bool neon = false;

  bool operator==(const CpuFeatures&) const = default;
};

struct CacheSizes {
  size_t l1_data_bytes = 32 << 10;
  size_t l2_bytes = 1 << 20;
  size_t l3_bytes = 16 << 20;  ///< size of one L3 cache, which several cores share
};

struct CpuInfo {
  std::string model_name;
  int usable_cpus = 1;            ///< number of CPUs by affinity and by the cgroup's quota, rounded up; at least 1
  size_t memory_limit_bytes = 0;  ///< the smaller of physical memory and the cgroup's limit
  CpuFeatures features;
  CacheSizes caches;
};

/// Returns the properties of this machine, which the first call detects. The environment variable TREADLE_ISA limits the instruction sets,
/// see limited_features(). @throws Error(invalid_argument) if the variable has another value
const CpuInfo& cpu_info();

/// Restricts features to `isa` and the levels before it: baseline (plain C++), neon, avx2, avx_vnni, avx512, avx512_vnni, avx512_bf16, amx.
/// @throws Error(invalid_argument) for any other text
CpuFeatures limited_features(CpuFeatures features, std::string_view isa);

/// cgroup limits (v1 or v2) of this process: the tightest ones between its group and the root.
struct CgroupLimits {
  std::optional<double> cpus;  ///< number of CPUs: quota divided by period
  std::optional<uint64_t> memory_bytes;
};

/// Reads the limits from /proc/self/cgroup, /proc/self/mountinfo and the mounts named there. @param root  prefix of all paths, for tests
CgroupLimits read_cgroup_limits(const std::string& root = {});

}  // namespace treadle
