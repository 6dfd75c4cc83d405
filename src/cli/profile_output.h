// Writes profiles to files. The extension selects the format. An additional ".gz" compresses the file.
#pragma once

#include <string>

#include "treadle/profile_report.h"

namespace treadle::cli {

/// Checks that a command will be able to write an output file after its work. Accepts an empty path. @param option  the option that gave
/// the path, for the message
/// @throws Error(invalid_argument) if the path is a folder, or if its folder does not exist or is not writable
void check_target(const char* option, const std::string& path);
/// Like check_target(), but also checks the extension. @throws Error(invalid_argument) also for an extension that profile_file() does not
/// support
void check_profile_output(const char* option, const std::string& path);
/// Writes a report or a trace. @param profile  has the events for trace files; may be null for reports. @throws Error(io_error), or an
/// error of profile_file()
void write_profile_output(const std::string& path, const ProfileReport& report, const Profile* profile);

}  // namespace treadle::cli
