"""The processes that compile: started, fed, watched, replaced and stopped."""
