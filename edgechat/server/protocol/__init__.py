"""OpenAI's requests and answers, as Structs: what is decoded, refused, and described in /openapi.json."""
