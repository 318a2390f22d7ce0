"""Developer tools of the repository; nothing here is shipped in a package."""
