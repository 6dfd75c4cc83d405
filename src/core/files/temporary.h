// Temporary files and folders of this process, so that a signal that ends it leaves none behind.
#pragma once

#include <string>

namespace treadle {

/// Notes a file or folder that the process will remove itself. Does nothing if the path is too long or too many are noted: then a signal
/// leaves it behind.
void note_temporary(const std::string& path) noexcept;
/// Forgets a noted path; call it when the path was removed or has become permanent.
void forget_temporary(const std::string& path) noexcept;

/// Removes all noted files, and folders with the files in them. Async-signal-safe.
void remove_temporaries() noexcept;

}  // namespace treadle
