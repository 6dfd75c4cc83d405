// Files of profiles, by the ends of their names; with .gz behind it, compressed.
#pragma once

#include <string>

#include "treadle/profile_report.h"

namespace treadle::cli {

/// What is written at the end has to have a place at the beginning. An empty path is none. @param option  that names the path
/// @throws Error(invalid_argument) for a folder, and where there is no folder that can be written to
void check_target(const char* option, const std::string& path);
/// Likewise. @throws Error(invalid_argument) also for a name that profile_file() does not know
void check_profile_output(const char* option, const std::string& path);
/// @param profile  for traces; may be null. @throws Error(io_error), and as profile_file()
void write_profile_output(const std::string& path, const ProfileReport& report, const Profile* profile);

}  // namespace treadle::cli
