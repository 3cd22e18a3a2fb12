# A guide quotes code that is built and run: every block of C++, CMake or a job file in it stands word for word in one of
# the files.
#
# cmake -D guide=… -D files=…;… -P quotes.cmake

cmake_minimum_required(VERSION 3.25)

set(texts "")
foreach(file IN LISTS files)
  file(READ "${file}" text)
  string(APPEND texts "${text}\n")
endforeach()

file(READ "${guide}" rest)
set(count 0)
while(TRUE)
  string(REGEX MATCH "\n```(cpp|cmake|ini)\n" fence "${rest}")
  if(NOT fence)
    break()
  endif()
  string(FIND "${rest}" "${fence}" start)
  string(LENGTH "${fence}" length)
  math(EXPR start "${start} + ${length}")
  string(SUBSTRING "${rest}" ${start} -1 rest)
  string(FIND "${rest}" "```" end)
  string(SUBSTRING "${rest}" 0 ${end} quote)
  string(SUBSTRING "${rest}" ${end} -1 rest)
  string(FIND "${texts}" "${quote}" found)
  if(found EQUAL -1)
    message(FATAL_ERROR "${guide} quotes what is in none of ${files}:\n${quote}")
  endif()
  math(EXPR count "${count} + 1")
endwhile()
if(count EQUAL 0)
  message(FATAL_ERROR "${guide} quotes nothing")
endif()
message(STATUS "${count} quotes found")
