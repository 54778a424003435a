"""{"compiles": 9, "recompiles": [
  {"cause": "data-branch", "at": "token"},
  {"cause": "no-sync", "at": "token"}, {"cause": "no-sync", "at": "token"}, {"cause": "no-sync", "at": "loss"},
  {"cause": "no-sync", "at": "token"}, {"cause": "no-sync", "at": "token"}, {"cause": "no-sync", "at": "loss"}
], "reads": [
  {"mentions": ["token", "optimizer.step()"], "at": "token"}, {"mentions": ["loss", "optimizer.step()"], "at": "loss"}
]}"""

import torch


def train():
    device = "xla"
    table = torch.nn.Parameter(torch.eye(4).to(device))
    optimizer = torch.optim.SGD([table], lr=0.1)
    for _ in range(3):
        state = torch.ones(4).to(device)
        loss = 0
        optimizer.zero_grad()
        for _position in range(2):
            state = torch.tanh(state @ table)
            loss = loss + state.pow(2).mean()
            token = state.argmax()
            if token.item() == 5:  # read token
                break
        loss.backward()
        optimizer.step()
        print(loss.item())  # read loss # site
