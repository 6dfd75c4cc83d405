// Files of profiles, by the ends of their names; with .gz behind it, compressed.
#pragma once

#include <string>

#include "treadle/profile.h"

namespace treadle::cli {

/// @throws Error(invalid_argument) for a name that profile_file() does not know
void check_profile_output(const std::string& path);
/// @param profile  for traces; may be null. @throws Error(io_error), and as profile_file()
void write_profile_output(const std::string& path, const std::string& json, const Profile* profile);

}  // namespace treadle::cli
