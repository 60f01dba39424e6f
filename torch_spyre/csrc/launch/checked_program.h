// What the sanitizer needs of a SpyreCode directory beside the program itself.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "card/sanitizer/sanitizer.h"

namespace spyre {

// The program to run while accesses are checked (checked.bin); empty when it is the usual one.
std::vector<std::byte> read_program_to_check(const std::filesystem::path& directory);

// Reads names.json and reference.bin, which may be missing: findings then have fewer names, and
// what the program computes is not compared with its operations. A file that is there and cannot
// be read is an error that names it.
std::shared_ptr<const card::CheckedProgram> read_checked_program(
    const std::filesystem::path& directory, const std::string& label,
    std::span<const std::byte> program);

}  // namespace spyre
