cmake_minimum_required(VERSION 3.25)

# Core works with any plugin because it knows none: no file of it contains the name of a strategy, transport or model of
# this tree as a word, in small or capital letters, alone or between underscores. Names that are also English words or
# protocols count only if they are whole string literals. core/conformance is left out: it has jobs for the plugins that
# it checks, with models of this tree. So are core/text and gguf_model.cpp: they read other programs' files, which have
# these words (the pattern of GPT-2, the key "single", an architecture of GGUF). PLUGINS: the targets of all plugins.
set(words single named mlp tcp)
# Environment variables that launchers of other programs set for their ranks, whatever transport these use.
set(variables MPI_LOCALRANKID MPI_LOCALNRANKS)

file(GLOB_RECURSE files "${SOURCE}/core/*")
list(FILTER files EXCLUDE REGEX "/core/((conformance|text)/|checkpoint/gguf_model\\.cpp$)")
set(found "")
# A name that is also an op's name is not looked for.
set(ops sin)
foreach(plugin IN LISTS PLUGINS)
  string(REGEX REPLACE "^shardrun_[a-z]+_" "" name "${plugin}")
  if(name IN_LIST ops)
    continue()
  endif()
  if(name IN_LIST words)
    set(pattern "\"${name}\"")
  else()
    string(TOUPPER "${name}" upper)
    set(pattern "(^|[^A-Za-z0-9])(${name}|${upper})($|[^A-Za-z0-9])")
  endif()
  foreach(file IN LISTS files)
    file(STRINGS "${file}" lines REGEX "${pattern}")
    foreach(line IN LISTS lines)
      foreach(variable IN LISTS variables)
        string(REPLACE "\"${variable}\"" "" line "${line}")
      endforeach()
      if(line MATCHES "${pattern}")
        string(APPEND found "${file}: ${name}: ${line}\n")
      endif()
    endforeach()
  endforeach()
endforeach()
list(LENGTH PLUGINS count)
if(count LESS 2)
  message(FATAL_ERROR "no plugins given")
endif()
if(found)
  message(FATAL_ERROR "core names plugins:\n${found}")
endif()
message(STATUS "core names none of ${count} plugins")
