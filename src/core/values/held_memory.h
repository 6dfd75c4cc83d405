// A snapshot of accounts when memory was refused, because errors are read after the memory was released.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "treadle/allocator.h"
#include "treadle/out_of_memory.h"

namespace treadle {

/// The memory that each account had in use at one moment.
struct HeldMemory {
  struct Account {
    std::string name;
    MemoryStatistics statistics;
  };
  std::vector<Account> accounts;  ///< the account that refused, and its parents
};

/// Returns a snapshot of the account and its parents; null if there is no account, or too little memory for a snapshot.
std::shared_ptr<const HeldMemory> held_memory(const MemoryAccount* account) noexcept;

}  // namespace treadle
