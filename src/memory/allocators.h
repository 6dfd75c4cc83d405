// The allocators that make_allocator() can combine. Each one gets its memory from another allocator.
#pragma once

#include <memory>

#include "treadle/allocator.h"

namespace treadle::memory {

std::shared_ptr<Allocator> make_arena_allocator(std::shared_ptr<Allocator> upstream);
std::shared_ptr<Allocator> make_guard_allocator(std::shared_ptr<Allocator> upstream);
std::shared_ptr<Allocator> make_nan_allocator(std::shared_ptr<Allocator> upstream);
std::shared_ptr<Allocator> make_pattern_allocator(std::shared_ptr<Allocator> upstream);
std::shared_ptr<RecordingAllocator> make_recording_allocator(std::shared_ptr<Allocator> upstream);

}  // namespace treadle::memory
