// Fuzzes recordings of profiles, and profiles as JSON.
#include <cstring>
#include <map>
#include <utility>

#include "profile/recording/stream_sections.h"
#include "tests/fuzz/file_kinds.h"
#include "tests/session/packing_model.h"
#include "treadle/error.h"
#include "treadle/profile_report.h"
#include "treadle/session.h"

namespace treadle::fuzz {
namespace {

namespace fs = std::filesystem;
using profile::SectionHead;

std::map<std::string, Datum> feeds() {
  using treadle::testing::numbers;
  return {{"image", numbers(Shape{1, 16, 12, 12}, 50)}, {"x", numbers(Shape{1, 48}, 51)}, {"steps", numbers(Shape{5, 2, 8}, 52)}};
}

std::vector<std::string> recordings(const fs::path& folder) {
  std::vector<std::string> made;
  for (const bool with_all : {false, true}) {
    SessionOptions options;
    options.intra_op_num_threads = with_all ? 2 : 1;
    Session session(treadle::testing::packing_model().model(), options);
    Profiler profiler = session.profiler({.memory = with_all, .kernel_phases = with_all, .stream_to = folder / "seed"});
    for (int i = 0; i < 3; ++i) {
      const ProfileRange range("batch");
      session.run(feeds());
      profiler.flush();
    }
    made.push_back(contents_of(folder / "seed"));
  }
  return made;
}

// Changes the contents of sections, and corrects the sections' sizes afterwards.
std::string changed_recording(const std::string& seed, Mutator& mutator) {
  if (mutator.one_in(8)) {
    std::string bytes = seed;
    mutator.change_binary(bytes);
    return bytes;
  }
  std::vector<std::pair<SectionHead, std::string>> sections;
  for (size_t at = profile::kStreamMagic.size(); at + sizeof(SectionHead) <= seed.size();) {
    SectionHead head{};
    std::memcpy(&head, seed.data() + at, sizeof head);
    sections.emplace_back(head, seed.substr(at + sizeof head, head.size_bytes));
    at += sizeof head + head.size_bytes;
  }
  for (size_t changes = 1 + mutator.below(2); changes > 0; --changes) {
    auto& [head, payload] = sections[mutator.below(sections.size())];
    if (mutator.one_in(16))
      head.kind = static_cast<uint32_t>(mutator.below(7));
    else if (mutator.one_in(16))
      sections.insert(sections.begin() + static_cast<std::ptrdiff_t>(mutator.below(sections.size())),
                      sections[mutator.below(sections.size())]);
    else if (head.kind == profile::kEventsSection)
      mutator.change_binary(payload);
    else
      mutator.change_text(payload);
  }
  std::string bytes(profile::kStreamMagic);
  for (auto& [head, payload] : sections) {
    head.size_bytes = payload.size();
    bytes.append(reinterpret_cast<const char*>(&head), sizeof head).append(payload);
  }
  return bytes;
}

void show(const ProfileReport& report) {
  profile_to_json(report);
  profile_to_table(report, {.memory = true});
  profile_to_tree(report);
  profile_to_html(report);
  profile_to_csv(report);
  difference_to_table(compare_profiles(report, report));
}

void use_recording(const fs::path& file, uint64_t) {
  const Profile profile = read_profile_recording(file.string());
  show(report_profile(profile));
  for (const TraceFormat format :
       {TraceFormat::perfetto, TraceFormat::chrome, TraceFormat::folded, TraceFormat::speedscope, TraceFormat::onnxruntime})
    profile_to_trace(profile, format);
}

std::vector<std::string> saved_profiles(const fs::path& folder) {
  std::vector<std::string> made;
  for (const std::string& recording : recordings(folder)) {
    write_contents(folder / "seed", recording);
    made.push_back(profile_to_json(report_profile(read_profile_recording(folder / "seed"))));
  }
  return made;
}

std::string changed_text(const std::string& seed, Mutator& mutator) {
  std::string text = seed;
  mutator.change_text(text);
  return text;
}

void use_saved_profile(const fs::path& file, uint64_t) { show(read_profile(contents_of(file))); }

}  // namespace

std::vector<FileKind> profile_files() {
  return {{"recording", ".profile", recordings, changed_recording, use_recording},
          {"profile", ".json", saved_profiles, changed_text, use_saved_profile}};
}

}  // namespace treadle::fuzz
