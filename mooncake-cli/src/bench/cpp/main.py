"""Starts the part that the first argument names, with the JSON object of the second."""

PARTS = {
    "probe": lambda: say(ready=True, pid=os.getpid()),
    "store-owner": StoreOwner,
    "store-client": StoreClient,
    "master-client": MasterClient,
    "engine-target": EngineTarget,
    "engine-initiator": EngineInitiator,
    "replay": Replay,
}

try:
    import mooncake.engine
    import mooncake.store
    PARTS[sys.argv[1]](**json.loads(sys.argv[2]))
except Exception as error:
    say(error=f"{type(error).__name__}: {error}")
    # Threads of the libraries may be running.
    os._exit(1)
