// The file of profile/stream_file.h, as it is written and read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/trace/recorder.h"

namespace treadle::profile {

inline constexpr std::string_view kStreamMagic = "TREADLE PROFILE\n";
inline constexpr int kStreamVersion = 3, kOldestStreamVersion = 2;  // of 1: other classes of memory; of 2: no begins of ranges

/// Before each section. Numbers are little-endian.
struct SectionHead {
  uint32_t kind, reserved;
  uint64_t size_bytes;  ///< of what follows
};
static_assert(sizeof(SectionHead) == 16);

enum SectionKind : uint32_t {
  kHeaderSection = 1,  ///< JSON: version, process, start_ticks
  kPlanSection = 2,    ///< JSON: plan_to_json(); the last one counts
  kNamesSection = 3,   ///< JSON: names of the program, from the one numbered `first` on
  kEventsSection = 4,  ///< a thread (ThreadHead, its name), and RecordEvents
  kMarkSection = 5,    ///< JSON: the sections before it are complete; clock, intervals, and what was lost
};

struct ThreadHead {
  int64_t system_id;
  uint64_t name_bytes;
};
static_assert(sizeof(ThreadHead) == 16);

}  // namespace treadle::profile
