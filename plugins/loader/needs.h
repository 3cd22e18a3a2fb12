#pragma once

#include <filesystem>

#include "plugins/loader/elf.h"

namespace shardrun::plugins {

/// The dynamic linker loads the libraries that a library needs, and those that they need, from folders that they name.
/// Each of these folders must be trusted as the library's own folder is, and so must each needed library that is found
/// there. Libraries in the system's folders are trusted. Throws Error{plugin} that says what is not.
void require_trusted_needs(const std::filesystem::path& file, const ElfFile& library);

}  // namespace shardrun::plugins
