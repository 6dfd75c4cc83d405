// The sections of the files that StreamWriter writes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/trace/recorder.h"

namespace treadle::profile {

inline constexpr std::string_view kStreamMagic = "TREADLE PROFILE\n";
// Versions of the file format. Version 1 had other memory classes; version 2 did not record the begins of ranges.
inline constexpr int kStreamVersion = 3, kOldestStreamVersion = 2;

/// The header of each section. Numbers are little-endian.
struct SectionHead {
  uint32_t kind, reserved;
  uint64_t size_bytes;  ///< size of the section without this header
};
static_assert(sizeof(SectionHead) == 16);

enum SectionKind : uint32_t {
  kHeaderSection = 1,  ///< JSON: version, process, start_ticks
  kPlanSection = 2,    ///< JSON of plan_to_json(); the last such section counts
  kNamesSection = 3,   ///< JSON: names and the number `first` of the first one
  kEventsSection = 4,  ///< a ThreadHead, the thread's name, and its RecordEvents
  kMarkSection = 5,    ///< JSON: ends a part; contains clocks, intervals and the number of lost events
};

struct ThreadHead {
  int64_t system_id;
  uint64_t name_bytes;
};
static_assert(sizeof(ThreadHead) == 16);

}  // namespace treadle::profile
