// What this process may use of the machine: CPUs, memory, instruction sets, caches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace treadle {

/// Instruction sets that both the CPU has and the operating system saves.
struct CpuFeatures {
  bool avx2 = false;         ///< with FMA and F16C
  bool avx512 = false;       ///< F, CD, BW, DQ and VL
  bool avx512_vnni = false;  ///< int8 dot products, 512 bits
  bool avx512_bf16 = false;
  bool avx512_fp16 = false;
  bool avx_vnni = false;  ///< int8 dot products, 256 bits, VEX
  bool amx_bf16 = false;  ///< tiles, and the kernel has granted them to this process
  bool amx_int8 = false;
  bool neon = false;

  bool operator==(const CpuFeatures&) const = default;
};

struct CacheSizes {
  size_t l1_data_bytes = 32 << 10;
  size_t l2_bytes = 1 << 20;
  size_t l3_bytes = 16 << 20;  ///< of one L3, shared by several cores
};

struct CpuInfo {
  std::string model_name;
  int usable_cpus = 1;            ///< by affinity and by the cgroup's quota (rounded up), at least 1
  size_t memory_limit_bytes = 0;  ///< the smaller of the physical memory and the cgroup's limit
  CpuFeatures features;
  CacheSizes caches;
};

/// Detected once, at the first call. The environment variable TREADLE_ISA names the most that is used of the instruction sets.
/// @throws Error(invalid_argument) if it names none
const CpuInfo& cpu_info();

/// The features that remain if nothing beyond `isa` is used: baseline, neon, avx2, avx_vnni, avx512, avx512_vnni, avx512_bf16, amx, each
/// with all that is named before it; baseline is plain C++.
/// @throws Error(invalid_argument) for any other text
CpuFeatures limited_features(CpuFeatures features, std::string_view isa);

/// Limits that cgroups (v1 or v2) put on this process; the tightest on the way from its group to the root.
struct CgroupLimits {
  std::optional<double> cpus;  ///< quota over period
  std::optional<uint64_t> memory_bytes;
};

/// @param root  prefix of every path read (/proc/self/cgroup, /proc/self/mountinfo and the mounts that it names); empty but in tests.
CgroupLimits read_cgroup_limits(const std::string& root = {});

}  // namespace treadle
