// The sections of the files of profile/stream_file.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/trace/recorder.h"

namespace treadle::profile {

inline constexpr std::string_view kStreamMagic = "TREADLE PROFILE\n";
inline constexpr int kStreamVersion = 3, kOldestStreamVersion = 2;  // 1 had other memory classes; 2 lacked the begins of ranges

/// Precedes each section. Numbers are little-endian.
struct SectionHead {
  uint32_t kind, reserved;
  uint64_t size_bytes;  ///< without this header
};
static_assert(sizeof(SectionHead) == 16);

enum SectionKind : uint32_t {
  kHeaderSection = 1,  ///< JSON: version, process, start_ticks
  kPlanSection = 2,    ///< JSON: plan_to_json(); the last one is valid
  kNamesSection = 3,   ///< JSON: the program's names, from number `first` on
  kEventsSection = 4,  ///< a thread (ThreadHead, its name) and its RecordEvents
  kMarkSection = 5,    ///< JSON: ends a part; has clocks, intervals, number of lost events
};

struct ThreadHead {
  int64_t system_id;
  uint64_t name_bytes;
};
static_assert(sizeof(ThreadHead) == 16);

}  // namespace treadle::profile
