// Converts shares, sizes and classes to text and back: on the command line, in requests to the coordinator, and in the environment.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "treadle/sharing.h"

namespace treadle::sharing {

/// Parses "30", "30%", "12.5". @throws Error(invalid_argument)
double parse_percent(std::string_view text);
/// Parses "1048576", "512MiB", "2GiB", "2G" (powers of 1024), "5MB" (powers of 1000); "none" is 0. @throws Error(invalid_argument)
uint64_t parse_bytes(std::string_view text);
/// Parses the name of a class. @throws Error(invalid_argument)
JobClass parse_class(std::string_view text);
std::string_view class_name(JobClass job_class) noexcept;
/// Returns text such as "512 MiB".
std::string format_bytes(uint64_t bytes);
/// Parses a word of a request: "share=30", "memory=2GiB", "host_memory=4GiB", "class=opportunistic", "suspend", "resume".
/// @throws Error(invalid_argument)
void parse_change(std::string_view word, JobChange& change);
/// Formats a job as "id=7 name=train pid=12 class=opportunistic share=30 …".
std::string format_status(const JobStatus& status);
/// Formats the status as a JSON object.
std::string format_json(const JobStatus& status);
/// Parses a line of format_status(); skips unknown keys.
JobStatus parse_status(std::string_view line);

}  // namespace treadle::sharing
