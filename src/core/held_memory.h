// What accounts held when memory was refused: errors are read when its holders have let go.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "treadle/allocator.h"
#include "treadle/out_of_memory.h"

namespace treadle {

/// At one moment.
struct HeldMemory {
  struct Account {
    std::string name;
    MemoryStatistics statistics;
  };
  std::vector<Account> accounts;  ///< the refused one, and those above it
};

/// Null: there is no account, or too little memory to say more.
std::shared_ptr<const HeldMemory> held_memory(const MemoryAccount* account) noexcept;

}  // namespace treadle
