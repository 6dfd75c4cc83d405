// Replaces the functions that analyze and write profiles in a reduced library without them.
#include "profile/analysis/analysis.h"
#include "profile/analysis/profile_of.h"
#include "profile/recording/stream_file.h"
#include "treadle/error.h"
#include "treadle/profile.h"

namespace treadle {
namespace {

[[noreturn]] void throw_missing() {
  throw Error(ErrorCode::not_implemented, "a profile: this is a build for training from artifacts, which takes none");
}

}  // namespace

namespace profile {

StreamWriter::StreamWriter(std::string, RecordWindow& window, Describe, Intervals, AwaitedFile)
    : window_(window), process_(0), wake_(nullptr), thread_(nullptr) {
  throw_missing();
}
StreamWriter::~StreamWriter() = default;
void StreamWriter::flush() {}
double measure_ns_per_event() { return 0; }
PlanFilter filter_of(const ProfilePlan&, uint64_t) { throw_missing(); }
Profile profile_of(ProfilePlan, Recording, std::unordered_map<uint32_t, int32_t>, std::vector<std::pair<uint64_t, uint64_t>>) {
  throw_missing();
}
Profile read_stream(const std::string&) { throw_missing(); }

}  // namespace profile

std::string profile_to_trace(const Profile&, TraceFormat) { throw_missing(); }

}  // namespace treadle
