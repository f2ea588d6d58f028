/* File operations, each in a process of its own with the rights of the caller's user. Their exit code is 0 or an errno;
   a line on standard error names the path.

     read PATH LIMIT      the bytes of a regular file to standard output; EFBIG above LIMIT
     write PATH MODE      standard input to a regular file, its folders made; MODE in octal, "" keeps that of an old file
     pack PATH LIMIT      a file or a tree to standard output as records; EFBIG above LIMIT bytes of content
     unpack PATH          records from standard input to a tree; below PATH no symbolic link is followed
     give PATH USER       a folder, made where it is not there, that belongs to USER ("" leaves its owner)

   A record is `u8 kind, u32 mode, u64 size, u32 path length, path, size bytes`, little-endian, kind one of
   f(ile) d(irectory) l(ink: the bytes are its target) e(nd), and the path relative, "" for PATH itself. */
#ifndef FILES_H
#define FILES_H

/* Returns the exit code. */
int files_run(char **arguments);

#endif
