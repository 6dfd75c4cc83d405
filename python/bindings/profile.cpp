// Profiles: JSON of a session's runs, and what is made of it.
#include "treadle/profile.h"

#include "session.h"

namespace treadle::python {
namespace {

std::string profile_json(const PySession& self, const std::string& model, std::optional<int> peaks_of_threads, bool float32) {
  nb::gil_scoped_release release;
  ProfileContext context{.model = model};
  const Profile profile = self.session.profile();
  if (peaks_of_threads) context.peaks = measure_machine_peaks(*peaks_of_threads);
  context.peaks_hold = float32;
  return profile_to_json(profile, context);
}

}  // namespace

void register_profile(nb::module_& module) {
  module.def(
      "start_profiling", [](PySession& self) { self.session.start_profiling(); }, nb::arg("session"));
  module.def(
      "pause_profiling", [](PySession& self) { self.session.pause_profiling(); }, nb::arg("session"));
  module.def(
      "resume_profiling", [](PySession& self) { self.session.resume_profiling(); }, nb::arg("session"));
  module.def("profile_json", &profile_json, nb::arg("session"), nb::arg("model"), nb::arg("peaks_of_threads").none(), nb::arg("float32"));
  module.def(
      "profile_table",
      [](const std::string& json, int top, const std::string& sort) { return profile_to_table(json, {.top = top, .sort = sort}); },
      nb::arg("json"), nb::arg("top"), nb::arg("sort"));
  module.def(
      "profile_html", [](const std::string& json) { return profile_to_html(json); }, nb::arg("json"));
  module.def(
      "compare_profiles",
      [](const std::string& before, const std::string& after, double tolerance, int top) {
        const ProfileDifference difference = compare_profiles(before, after, tolerance, {.top = top});
        return nb::make_tuple(difference.text, difference.json);
      },
      nb::arg("before"), nb::arg("after"), nb::arg("tolerance"), nb::arg("top"));
}

}  // namespace treadle::python
