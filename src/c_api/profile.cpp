// Profiles in C.
#include "treadle/profile.h"

#include <span>

#include "c_api/values.h"
#include "core/file.h"
#include "treadle/treadle.h"

using namespace treadle::c_api;

treadle_status* treadle_session_start_profiling(treadle_session* session) {
  return guarded([&] { require(session, "session").session.start_profiling(); });
}

treadle_status* treadle_session_save_profile(treadle_session* session, const char* path) {
  return guarded([&] {
    const std::string name = &require(path, "path");
    treadle::check_profile_file(name);
    const treadle::Profile profile = require(session, "session").session.profile();
    const std::string text = treadle::profile_file(name, treadle::profile_to_json(profile), &profile);
    treadle::AtomicFile file(name);
    file.write(std::as_bytes(std::span(text)));
    file.commit();
  });
}
