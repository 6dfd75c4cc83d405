#include "core/base/cpu_info.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "treadle/error.h"

namespace treadle {
namespace {

namespace fs = std::filesystem;

// A made-up file system with /proc/self/cgroup, mountinfo and group directories.
class CgroupTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) /
            ("cgroup_" + std::to_string(getpid()) + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    fs::path file = root_.string() + path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  CgroupLimits read() const { return read_cgroup_limits(root_.string()); }
  fs::path root_;
};

TEST_F(CgroupTest, Version2TakesTheTightestLimitOfTheAncestors) {
  write("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n");
  write("/proc/self/cgroup", "0::/system/job\n");
  write("/sys/fs/cgroup/system/job/cpu.max", "max 100000\n");
  write("/sys/fs/cgroup/system/cpu.max", "150000 100000\n");
  write("/sys/fs/cgroup/system/job/memory.max", "1073741824\n");
  write("/sys/fs/cgroup/system/memory.max", "max\n");
  EXPECT_EQ(read().cpus, 1.5);
  EXPECT_EQ(read().memory_bytes, uint64_t{1} << 30);
}

TEST_F(CgroupTest, Version1HasAHierarchyForEachController) {
  write("/proc/self/mountinfo",
        "31 23 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "32 23 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  write("/proc/self/cgroup", "5:memory:/a/b\n4:cpu,cpuacct:/a\n0::/\n");
  write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "50000\n");
  write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "268435456\n");
  write("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(read().cpus, 0.5);
  EXPECT_EQ(read().memory_bytes, uint64_t{1} << 28);
}

TEST_F(CgroupTest, AContainerSeesItsOwnPartOfTheHierarchy) {
  write("/proc/self/mountinfo", "32 23 0:28 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  write("/proc/self/cgroup", "5:memory:/docker/abc\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "134217728\n");
  EXPECT_EQ(read().memory_bytes, uint64_t{1} << 27);
}

TEST_F(CgroupTest, NoQuotaMeansNoLimit) {
  EXPECT_FALSE(read().cpus);
  write("/proc/self/mountinfo", "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n");
  write("/proc/self/cgroup", "4:cpu:/\n");
  write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_FALSE(read().cpus);
  EXPECT_FALSE(read().memory_bytes);
}

TEST(CpuInfo, UsableCpusRespectTheAffinityMask) {
  cpu_set_t set;
  CPU_ZERO(&set);
  ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  EXPECT_GE(cpu_info().usable_cpus, 1);
  EXPECT_LE(cpu_info().usable_cpus, CPU_COUNT(&set));
}

TEST(CpuInfo, FeaturesAgreeWithTheKernel) {
#if defined(__x86_64__)
  if (const char* isa = std::getenv("TREADLE_ISA"); isa && *isa) GTEST_SKIP() << "limited to " << isa;
  std::ifstream file("/proc/cpuinfo");
  std::string flags;
  for (std::string line; flags.empty() && std::getline(file, line);)
    if (line.rfind("flags", 0) == 0) flags = line + " ";
  if (flags.empty()) GTEST_SKIP() << "no /proc/cpuinfo";
  auto has = [&](const char* flag) { return flags.find(" " + std::string(flag) + " ") != std::string::npos; };
  const CpuFeatures& features = cpu_info().features;
  EXPECT_EQ(features.avx2, has("avx2") && has("fma") && has("f16c"));
  EXPECT_EQ(features.avx512, has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl") && has("avx512cd"));
  EXPECT_EQ(features.avx512_vnni, has("avx512_vnni"));
  EXPECT_EQ(features.avx512_bf16, has("avx512_bf16"));
  EXPECT_EQ(features.avx_vnni, has("avx_vnni"));
  EXPECT_FALSE(!has("amx_tile") && (features.amx_bf16 || features.amx_int8));
#endif
}

CpuFeatures everything() {
  return {.avx2 = true,
          .avx512 = true,
          .avx512_vnni = true,
          .avx512_bf16 = true,
          .avx512_fp16 = true,
          .avx_vnni = true,
          .amx_bf16 = true,
          .amx_int8 = true,
          .neon = true};
}

TEST(CpuInfo, AnInstructionSetBringsAllBeforeIt) {
  EXPECT_EQ(limited_features(everything(), "baseline"), CpuFeatures{});
  EXPECT_EQ(limited_features(everything(), "neon"), CpuFeatures{.neon = true});
  EXPECT_EQ(limited_features(everything(), "avx2"), (CpuFeatures{.avx2 = true, .neon = true}));
  const CpuFeatures limited = limited_features(everything(), "avx512");
  EXPECT_TRUE(limited.avx2 && limited.avx512 && limited.avx_vnni);
  EXPECT_FALSE(limited.avx512_vnni || limited.avx512_bf16 || limited.avx512_fp16 || limited.amx_bf16 || limited.amx_int8);
  EXPECT_EQ(limited_features(everything(), "amx"), everything());
}

TEST(CpuInfo, NothingIsAddedThatTheMachineLacks) {
  for (const char* isa : {"baseline", "neon", "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx"})
    EXPECT_EQ(limited_features({}, isa), CpuFeatures{}) << isa;
  const CpuFeatures old{.avx2 = true};
  EXPECT_EQ(limited_features(old, "amx"), old);
}

TEST(CpuInfo, AnUnknownInstructionSetIsRefusedWithTheKnownOnes) {
  try {
    limited_features(everything(), "avx9");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_STREQ(error.what(), "TREADLE_ISA is \"avx9\"; there are baseline, neon, avx2, avx_vnni, avx512, avx512_vnni, avx512_bf16, amx");
  }
}

TEST(CpuInfo, SizesArePlausible) {
  const CpuInfo& info = cpu_info();
  EXPECT_GE(info.caches.l1_data_bytes, size_t{8} << 10);
  EXPECT_LT(info.caches.l1_data_bytes, info.caches.l2_bytes);
  EXPECT_GE(info.memory_limit_bytes, size_t{64} << 20);
  EXPECT_FALSE(info.model_name.empty());
}

}  // namespace
}  // namespace treadle
