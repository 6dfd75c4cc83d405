#include "core/base/cpu_info.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "treadle/error.h"

#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace treadle {
namespace {

// ---- cgroups ----

// The mount point of a cgroup controller's hierarchy, and the path of this process's group below it.
struct ControllerDir {
  std::string mount, group;
};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

bool contains(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

// An entry of /proc/self/mountinfo: "36 35 98:0 /root/in/fs /mount/point options [tags] - fstype source super,options".
struct Mount {
  std::string root, point;
};
std::optional<Mount> find_cgroup_mount(const std::string& prefix, const std::string& controller) {
  std::ifstream file(prefix + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    auto fields = split(line, ' ');
    auto dash = std::find(fields.begin(), fields.end(), "-");
    if (dash - fields.begin() < 5 || fields.end() - dash < 4) continue;
    bool matches = controller.empty() ? dash[1] == "cgroup2" : dash[1] == "cgroup" && contains(split(dash[3], ','), controller);
    if (matches) return Mount{fields[3], fields[4]};
  }
  return std::nullopt;
}

// Finds the group of this process. @param controller  "cpu" or "memory" for cgroup v1, "" for the single hierarchy of v2
std::optional<ControllerDir> find_controller(const std::string& prefix, const std::string& controller) {
  auto mount = find_cgroup_mount(prefix, controller);
  if (!mount) return std::nullopt;
  std::ifstream file(prefix + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::string names = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    if (controller.empty() ? !names.empty() || line[0] != '0' : !contains(split(names, ','), controller)) continue;
    // A container may mount only a part of the hierarchy; the path above that part is removed from the group's path.
    if (mount->root != "/" && group.compare(0, mount->root.size(), mount->root) == 0) group.erase(0, mount->root.size());
    if (group == "/" || group.find("..") != std::string::npos) group.clear();
    return ControllerDir{prefix + mount->point, group};
  }
  return std::nullopt;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<double> to_number(const std::string& text) {
  try {
    size_t used = 0;
    double value = std::stod(text, &used);
    return used > 0 ? std::optional(value) : std::nullopt;
  } catch (const std::exception&) {
    return std::nullopt;  // the file contains "max", or does not exist
  }
}

template <typename T>
void tighten(std::optional<T>& limit, T value) {
  if (!limit || value < *limit) limit = value;
}

template <typename Fn>
void for_each_ancestor(const ControllerDir& dir, Fn&& fn) {
  for (std::string group = dir.group;; group.erase(group.rfind('/'))) {
    fn(dir.mount + group);
    if (group.rfind('/') == std::string::npos) return;
  }
}

void read_cpu_quota(const std::string& quota, const std::string& period, CgroupLimits& limits) {
  auto q = to_number(quota), p = to_number(period);
  if (q && p && *q > 0 && *p > 0) tighten(limits.cpus, *q / *p);
}

void read_memory_limit(const std::string& text, CgroupLimits& limits) {
  auto bytes = to_number(text);
  constexpr double kUnlimited = 0x1p62;  // cgroup v1 gives the largest page count if there is no limit
  if (bytes && *bytes > 0 && *bytes < kUnlimited) tighten(limits.memory_bytes, static_cast<uint64_t>(*bytes));
}

// ---- CPUs and memory ----

int affinity_cpus() {
#if defined(__linux__)
  for (int capacity = 1024; capacity <= (1 << 20); capacity *= 2) {  // sched_getaffinity() fails if this mask is smaller than the kernel's
    cpu_set_t* set = CPU_ALLOC(capacity);
    size_t size = CPU_ALLOC_SIZE(capacity);
    int count = set && sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
#endif
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

size_t physical_memory_bytes() {
#if defined(__linux__)
  long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
  if (pages > 0 && page > 0) return static_cast<size_t>(pages) * static_cast<size_t>(page);
#endif
  return size_t{1} << 32;
}

// ARM processors report numbers instead of a name: the implementer and the part.
std::string model_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string implementer, part;
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    if (line.rfind("model name", 0) == 0) return line.substr(colon + 2);
    if (line.rfind("CPU implementer", 0) == 0) implementer = line.substr(colon + 2);
    if (line.rfind("CPU part", 0) == 0) part = line.substr(colon + 2);
  }
  return part.empty() ? "unknown" : "implementer " + implementer + ", part " + part;
}

CacheSizes cache_sizes() {
  CacheSizes sizes;
  for (int index = 0; index < 8; ++index) {
    std::string dir = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    auto level = to_number(first_line(dir + "level"));
    auto size = to_number(first_line(dir + "size"));  // text such as "32K"
    if (!level || !size) continue;
    if (first_line(dir + "type") == "Instruction") continue;
    auto bytes = static_cast<size_t>(*size) << (first_line(dir + "size").back() == 'M' ? 20 : 10);
    if (*level == 1) sizes.l1_data_bytes = bytes;
    if (*level == 2) sizes.l2_bytes = bytes;
    if (*level == 3) sizes.l3_bytes = bytes;
  }
  return sizes;
}

#if defined(__x86_64__)
uint64_t read_xcr0() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

// Linux grants a process AMX's tile state, eight kilobytes, only on request.
bool request_tiles() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // arguments of arch_prctl(): ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

CpuFeatures detect_features() {
  CpuFeatures features;
  uint32_t a = 0, b = 0, c = 0, d = 0;
  auto bit = [](uint32_t word, int index) { return (word >> index & 1U) != 0; };
  if (!__get_cpuid(1, &a, &b, &c, &d) || !bit(c, 27)) return features;  // bit 27: the operating system has enabled XSAVE
  bool fma_f16c = bit(c, 12) && bit(c, 29);
  uint64_t saved = read_xcr0();
  bool ymm = (saved & 0x6) == 0x6, zmm = (saved & 0xE6) == 0xE6, tiles = (saved & 0x60000) == 0x60000;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return features;
  uint32_t max_subleaf = a;
  features.avx2 = ymm && fma_f16c && bit(b, 5);
  features.avx512 = features.avx2 && zmm && bit(b, 16) && bit(b, 17) && bit(b, 28) && bit(b, 30) && bit(b, 31);
  features.avx512_vnni = features.avx512 && bit(c, 11);
  features.avx512_fp16 = features.avx512 && bit(d, 23);
  bool amx_bf16 = bit(d, 22), amx_tile = bit(d, 24), amx_int8 = bit(d, 25);
  bool granted = tiles && amx_tile && (amx_bf16 || amx_int8) && request_tiles();
  features.amx_bf16 = granted && amx_bf16;
  features.amx_int8 = granted && amx_int8;
  if (max_subleaf >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) {
    features.avx_vnni = features.avx2 && bit(a, 4);
    features.avx512_bf16 = features.avx512 && bit(a, 5);
  }
  return features;
}
#else
CpuFeatures detect_features() {
  CpuFeatures features;
#if defined(__aarch64__)
  features.neon = true;
#endif
  return features;
}
#endif

CpuInfo detect() {
  CpuInfo info;
  CgroupLimits limits = read_cgroup_limits();
  info.model_name = model_name();
  info.usable_cpus = affinity_cpus();
  if (limits.cpus) info.usable_cpus = std::min(info.usable_cpus, static_cast<int>(std::ceil(std::min(*limits.cpus, 1e6))));
  info.usable_cpus = std::max(1, info.usable_cpus);
  info.memory_limit_bytes = physical_memory_bytes();
  if (limits.memory_bytes) info.memory_limit_bytes = std::min<size_t>(info.memory_limit_bytes, *limits.memory_bytes);
  info.features = detect_features();
#if defined(HWY_COMPILE_ONLY_STATIC) && defined(__x86_64__) && !defined(__AVX512F__)
  // In a build for one instruction set, panels of packed weights have its vector width. AMX tiles need panels of sixteen floats.
  info.features.amx_bf16 = info.features.amx_int8 = false;
#endif
  if (const char* isa = std::getenv("TREADLE_ISA"); isa && *isa) info.features = limited_features(info.features, isa);
  info.caches = cache_sizes();
  return info;
}

}  // namespace

CpuFeatures limited_features(CpuFeatures features, std::string_view isa) {
  using Has = bool CpuFeatures::*;
  struct Level {
    std::string_view name;
    std::vector<Has> adds;
  };
  static const std::vector<Level> levels{
      {"baseline", {}},
      {"neon", {&CpuFeatures::neon}},
      {"avx2", {&CpuFeatures::avx2}},
      {"avx_vnni", {&CpuFeatures::avx_vnni}},
      {"avx512", {&CpuFeatures::avx512}},
      {"avx512_vnni", {&CpuFeatures::avx512_vnni}},
      {"avx512_bf16", {&CpuFeatures::avx512_bf16, &CpuFeatures::avx512_fp16}},
      {"amx", {&CpuFeatures::amx_bf16, &CpuFeatures::amx_int8}},
  };
  CpuFeatures limited;
  std::string names;
  for (const Level& level : levels) {
    for (Has has : level.adds) limited.*has = features.*has;
    if (level.name == isa) return limited;
    names += (names.empty() ? "" : ", ") + std::string(level.name);
  }
  throw Error(ErrorCode::invalid_argument, "TREADLE_ISA is \"" + std::string(isa) + "\"; there are " + names);
}

CgroupLimits read_cgroup_limits(const std::string& root) {
  CgroupLimits limits;
  // A system may use both versions of cgroups. Each controller belongs to one of them, so both are read.
  if (auto dir = find_controller(root, "cpu"))
    for_each_ancestor(*dir, [&](const std::string& path) {
      read_cpu_quota(first_line(path + "/cpu.cfs_quota_us"), first_line(path + "/cpu.cfs_period_us"), limits);
    });
  if (auto dir = find_controller(root, "memory"))
    for_each_ancestor(*dir, [&](const std::string& path) { read_memory_limit(first_line(path + "/memory.limit_in_bytes"), limits); });
  if (auto dir = find_controller(root, ""))
    for_each_ancestor(*dir, [&](const std::string& path) {
      auto parts = split(first_line(path + "/cpu.max"), ' ');  // text such as "150000 100000" or "max 100000"
      if (parts.size() == 2) read_cpu_quota(parts[0], parts[1], limits);
      read_memory_limit(first_line(path + "/memory.max"), limits);
    });
  return limits;
}

const CpuInfo& cpu_info() {
  static const CpuInfo info = detect();
  return info;
}

}  // namespace treadle
