// Writes profiles to files. The extension selects the format; ".gz" after it compresses.
#pragma once

#include <string>

#include "treadle/profile_report.h"

namespace treadle::cli {

/// Checks, before a command does its work, that it can write an output file afterwards. Accepts an empty path. @param option  for the
/// message
/// @throws Error(invalid_argument) if the path is a folder, or if its folder does not exist or is not writable
void check_target(const char* option, const std::string& path);
/// Like check_target(), and checks the extension. @throws Error(invalid_argument) also for an extension that profile_file() does not
/// support
void check_profile_output(const char* option, const std::string& path);
/// Writes a report or a trace. @param profile  the events for trace files; may be null. @throws Error(io_error), and errors of
/// profile_file()
void write_profile_output(const std::string& path, const ProfileReport& report, const Profile* profile);

}  // namespace treadle::cli
