// Profiles: of sessions, trainers and joint modules, and what is made of them.
#include "treadle/profile.h"

#include "session.h"
#include "treadle/train.h"

namespace treadle::python {
namespace {

struct PyProfile {
  Profile profile;
  std::string json;
};

const Session& profiled(const PySession& self) { return self.session; }
const train::Trainer& profiled(const train::Trainer& self) { return self; }
const train::JointModule& profiled(const train::JointModule& self) { return self; }

template <typename Client>
void register_profiled(nb::module_& module) {
  auto of = [](Client& self) -> auto& { return const_cast<std::remove_cvref_t<decltype(profiled(self))>&>(profiled(self)); };
  module.def(
      "start_profiling", [of](Client& self) { of(self).start_profiling(); }, nb::arg("client"));
  module.def(
      "pause_profiling", [of](Client& self) { of(self).pause_profiling(); }, nb::arg("client"));
  module.def(
      "resume_profiling", [of](Client& self) { of(self).resume_profiling(); }, nb::arg("client"));
  module.def(
      "take_profile",
      [](const Client& self, const std::string& model, std::optional<int> peaks_of_threads, bool float32) {
        nb::gil_scoped_release release;
        ProfileContext context{.model = model};
        PyProfile made{profiled(self).profile(), {}};
        if (peaks_of_threads) context.peaks = measure_machine_peaks(*peaks_of_threads);
        context.peaks_hold = float32;
        made.json = profile_to_json(made.profile, context);
        return made;
      },
      nb::arg("client"), nb::arg("model"), nb::arg("peaks_of_threads").none(), nb::arg("float32"));
}

nb::bytes profile_contents(const std::string& path, const std::string& json, const PyProfile* profile) {
  std::string text;
  {
    nb::gil_scoped_release release;
    text = profile_file(path, json, profile ? &profile->profile : nullptr);
  }
  return nb::bytes(text.data(), text.size());
}

}  // namespace

void register_profile(nb::module_& module) {
  nb::class_<PyProfile>(module, "NativeProfile").def_ro("json", &PyProfile::json);
  register_profiled<PySession>(module);
  register_profiled<train::Trainer>(module);
  register_profiled<train::JointModule>(module);
  module.def("profile_file", &profile_contents, nb::arg("path"), nb::arg("json"), nb::arg("profile").none());
  module.def(
      "profile_table",
      [](const std::string& json, int top, const std::string& sort, bool memory) {
        return profile_to_table(json, {.top = top, .memory = memory, .sort = sort});
      },
      nb::arg("json"), nb::arg("top"), nb::arg("sort"), nb::arg("memory"));
  module.def(
      "compare_profiles",
      [](const std::string& before, const std::string& after, double tolerance, int top) {
        const ProfileDifference difference = compare_profiles(before, after, tolerance, {.top = top});
        return nb::make_tuple(difference.text, difference.json);
      },
      nb::arg("before"), nb::arg("after"), nb::arg("tolerance"), nb::arg("top"));
}

}  // namespace treadle::python
